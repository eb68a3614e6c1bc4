/* One line per event on standard error; sentences for people (`request 7`, not `request=7`).
 * Prompts and tokens never appear. Thread-safe; a line is one write(2). */
#ifndef BATON_BASE_LOG_H
#define BATON_BASE_LOG_H

enum log_level { LOG_ERROR, LOG_WARNING, LOG_INFO, LOG_DEBUG };

/* @name stands at the head of each line ("conductor", "prefill-1"); kept by reference. */
void log_init(const char *name, enum log_level max_level);
void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)
#define log_warning(...) log_line(LOG_WARNING, __VA_ARGS__)
#define log_info(...) log_line(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)

#endif

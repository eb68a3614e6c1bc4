#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LOG_LINE_BYTES_MAX 2048

static const char *log_name = "baton";
static enum log_level log_level_max = LOG_INFO;

void log_init(const char *name, enum log_level max_level)
{
	log_name = name;
	log_level_max = max_level;
}

void log_line(enum log_level level, const char *format, ...)
{
	static const char letters[] = "EWID";
	char line[LOG_LINE_BYTES_MAX];
	struct timespec now;
	struct tm parts;

	if (level > log_level_max)
		return;
	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &parts);
	int used = snprintf(line, sizeof line, "%02d:%02d:%02d.%03ld %c %s: ", parts.tm_hour,
			    parts.tm_min, parts.tm_sec, now.tv_nsec / 1000000, letters[level], log_name);
	va_list args;
	va_start(args, format);
	int more = vsnprintf(line + used, sizeof line - (size_t)used - 1, format, args);
	va_end(args);
	size_t bytes = (size_t)used + (more < 0 ? 0 : (size_t)more);
	if (bytes > sizeof line - 2)
		bytes = sizeof line - 2;
	line[bytes] = '\n';
	(void)!write(STDERR_FILENO, line, bytes + 1);
}

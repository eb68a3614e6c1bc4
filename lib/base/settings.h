/*
 * Settings: one table row each. The parser, --help, --print-config, the sample file and the
 * docs all come from the table. Sources, later ones win: the row's initial value, the file
 * /etc/baton/DAEMON.conf (or --config FILE; lines `name = value`, # comments), environment
 * BATON_SETTING and then BATON_DAEMON_SETTING (upper case, - becomes _), flags (--name value,
 * --name=value, --bool / --no-bool). A wrong option gets one specific line, never the help.
 *
 * In a file a value may stand in double quotes, with \" \\ \n inside; that is needed only to keep
 * outer blanks or a #. --print-config writes what --config reads, secrets excepted.
 */
#ifndef BATON_BASE_SETTINGS_H
#define BATON_BASE_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum setting_type {
	SETTING_BOOL,     /* bool */
	SETTING_COUNT,    /* uint64_t, plain number */
	SETTING_BYTES,    /* uint64_t, accepts K M G T (binary) suffixes */
	SETTING_DURATION, /* uint64_t nanoseconds, accepts ns us ms s m h; a bare number is the row's unit */
	SETTING_REAL,     /* double */
	SETTING_TEXT,     /* const char *, owned by the settings; "" when unset */
	SETTING_CHOICE,   /* uint64_t index into choices */
	SETTING_LIST,     /* const char *: may be given several times, values joined with \n */
};

struct setting {
	const char *name; /* "max-num-seqs" */
	enum setting_type type;
	const char *unit;    /* "ms", "tokens", "" ; for help, and a duration's default unit */
	const char *initial; /* as text, parsed like any other source */
	double min, max;     /* of numbers, durations in the row's unit; max 0: no upper bound */
	const char *help;    /* one sentence */
	size_t offset;       /* offsetof(struct config, field) */
	const char *const *choices; /* SETTING_CHOICE: NULL-terminated */
	bool reloadable, secret;    /* secret: --print-config shows *** */
};

struct settings {
	const char *daemon; /* "conductor": names the file and the environment prefix */
	const char *summary; /* one line at the head of --help */
	const char *positional; /* name of the setting that one bare argument sets, or NULL */
	const struct setting *rows;
	size_t row_count;
	const char *program; /* how it calls itself; NULL: baton-DAEMON */
};

/*
 * settings_load() - fill @config from all sources
 * Prints --help, --version, --print-config, --print-sample or --print-docs (a Markdown table)
 * itself and returns 1: the caller exits 0. On a wrong value returns -EINVAL after one line on standard error naming the source,
 * the setting, what was wrong and what would be right. Texts live until settings_free().
 */
int settings_load(const struct settings *settings, int argc, char **argv, void *config);
void settings_free(const struct settings *settings, void *config);
void settings_print(const struct settings *settings, const void *config, FILE *out);

/* The project's version, as in meson.build. */
extern const char baton_version[];

#endif

/* The sources of settings, in their order: initial values, file, environment, flags. */
#include "base/settings.h"
#include "base/settings_internal.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/err.h"

const char baton_version[] = BATON_VERSION;

/* A configuration file is read by people; anything larger is the wrong file. */
#define FILE_BYTES_MAX (1u << 20)

enum print_what { PRINT_NOTHING, PRINT_HELP, PRINT_VERSION, PRINT_CONFIG, PRINT_SAMPLE, PRINT_DOCS };

static const struct {
	const char *flag;
	enum print_what what;
} print_flags[] = {
	{ "help", PRINT_HELP },
	{ "version", PRINT_VERSION },
	{ "print-config", PRINT_CONFIG },
	{ "print-sample", PRINT_SAMPLE },
	{ "print-docs", PRINT_DOCS },
};

struct load {
	const struct settings *settings;
	void *config;
	bool *given; /* [row_count] set by the present source; its second value of a list appends */
	const char *path; /* --config, or NULL */
	enum print_what print;
};

static const struct setting *row_find(const struct settings *settings, const char *name, size_t bytes)
{
	for (size_t i = 0; i < settings->row_count; i++) {
		const char *at = settings->rows[i].name;
		size_t match = 0;
		/* vLLM takes --max_num_seqs for --max-num-seqs, and people are used to it. */
		while (match < bytes && at[match] &&
		       (at[match] == name[match] || (at[match] == '-' && name[match] == '_')))
			match++;
		if (match == bytes && !at[match])
			return &settings->rows[i];
	}
	return NULL;
}

static size_t edit_distance(const char *a, size_t a_bytes, const char *b)
{
	size_t b_bytes = strlen(b), row[64];

	if (a_bytes >= 64 || b_bytes >= 64)
		return SIZE_MAX;
	for (size_t j = 0; j <= b_bytes; j++)
		row[j] = j;
	for (size_t i = 1; i <= a_bytes; i++) {
		size_t diagonal = row[0];
		row[0] = i;
		for (size_t j = 1; j <= b_bytes; j++) {
			size_t changed = diagonal + (a[i - 1] != b[j - 1]);
			diagonal = row[j];
			row[j] = MIN(changed, MIN(row[j], row[j - 1]) + 1);
		}
	}
	return row[b_bytes];
}

/* The setting somebody who wrote @name most likely meant, or NULL. */
static const char *row_guess(const struct settings *settings, const char *name, size_t bytes)
{
	const char *best = NULL;
	size_t best_distance = bytes / 3 + 1;

	for (size_t i = 0; i < settings->row_count; i++) {
		size_t distance = edit_distance(name, bytes, settings->rows[i].name);
		if (distance > best_distance || (best && distance == best_distance))
			continue;
		best = settings->rows[i].name;
		best_distance = distance;
	}
	return best;
}

const char *settings__program(const struct settings *settings, char room[96])
{
	if (settings->program)
		return settings->program;
	snprintf(room, 96, "baton-%s", settings->daemon);
	return room;
}

static int fail(const struct load *load, const char *source, const char *problem)
{
	char room[96];

	fprintf(stderr, "%s: %s: %s\n", settings__program(load->settings, room), source, problem);
	return -EINVAL;
}

static int fail_unknown(const struct load *load, const char *source, const char *dashes,
			const char *name, size_t bytes)
{
	const char *guess = row_guess(load->settings, name, bytes);
	struct buf problem;

	buf_init(&problem, 0);
	buf_printf(&problem, "unknown %s %s%.*s", *dashes ? "option" : "setting", dashes, (int)bytes, name);
	if (guess)
		buf_printf(&problem, "; did you mean %s%s?", dashes, guess);
	else
		buf_append_text(&problem, "; --help lists what there is");
	int error = fail(load, source, problem.data);
	buf_fini(&problem);
	return error;
}

static int set(struct load *load, const struct setting *row, const char *value, const char *source)
{
	bool *given = &load->given[row - load->settings->rows];
	struct buf problem;

	buf_init(&problem, 0);
	int error = settings__value_set(row, value, *given, load->config, &problem);
	if (error)
		(void)fail(load, source, problem.data ? problem.data : err_text(error));
	*given = true;
	buf_fini(&problem);
	return error;
}

static void source_begin(struct load *load)
{
	memset(load->given, 0, load->settings->row_count * sizeof *load->given);
}

static int load_initial(struct load *load)
{
	const struct settings *settings = load->settings;

	for (size_t i = 0; i < settings->row_count; i++) {
		const struct setting *row = &settings->rows[i];
		if (row->type != SETTING_TEXT && row->type != SETTING_LIST)
			continue;
		/* Every text is on the heap from here on, so that settings_free() can be blunt. */
		const char **field = (const char **)((char *)load->config + row->offset);
		*field = strdup("");
		if (!*field)
			return -ENOMEM;
	}
	source_begin(load);
	for (size_t i = 0; i < settings->row_count; i++) {
		const char *initial = settings->rows[i].initial;
		int error = set(load, &settings->rows[i], initial ? initial : "", "initial value");
		if (error)
			return error;
	}
	return 0;
}

/* Cuts blanks and a comment off, and takes quotes away, in place. NULL: a quote is not closed. */
static char *file_value(char *text)
{
	char *in = text + strspn(text, " \t"), *out;

	if (*in != '"') {
		text = in;
		for (out = in; *in; in++)
			if (*in == '#' && (in == text || isspace((unsigned char)in[-1])))
				break;
		while (in > out && isspace((unsigned char)in[-1]))
			in--;
		*in = 0;
		return text;
	}
	text = out = ++in;
	while (*in && *in != '"') {
		if (*in == '\\' && in[1]) {
			in++;
			*out++ = *in == 'n' ? '\n' : *in;
			in++;
		} else {
			*out++ = *in++;
		}
	}
	if (*in != '"')
		return NULL;
	in += 1 + strspn(in + 1, " \t\r");
	if (*in && *in != '#')
		return NULL;
	*out = 0;
	return text;
}

static int load_line(struct load *load, char *line, const char *source)
{
	char *name = line + strspn(line, " \t\r");
	if (!*name || *name == '#')
		return 0;
	size_t bytes = strcspn(name, "= \t");
	char *equals = name + bytes + strspn(name + bytes, " \t");
	if (*equals != '=')
		return fail(load, source, "a line must read `name = value`");
	char *value = file_value(equals + 1);
	if (!value)
		return fail(load, source, "the closing \" is missing or something follows it");
	const struct setting *row = row_find(load->settings, name, bytes);
	if (!row)
		return fail_unknown(load, source, "", name, bytes);
	return set(load, row, value, source);
}

static int load_file(struct load *load)
{
	char standard[128], source[512], *line = NULL;
	size_t capacity = 0, total = 0;
	int error = 0, number = 0;

	snprintf(standard, sizeof standard, "/etc/baton/%s.conf", load->settings->daemon);
	const char *path = load->path ? load->path : standard;
	FILE *file = fopen(path, "re");
	if (!file) {
		if (!load->path && (errno == ENOENT || errno == ENOTDIR))
			return 0;
		return fail(load, path, strerror(errno));
	}
	source_begin(load);
	ssize_t bytes;
	while (!error && (bytes = getline(&line, &capacity, file)) >= 0) {
		total += (size_t)bytes;
		snprintf(source, sizeof source, "%.400s line %d", path, ++number);
		if (total > FILE_BYTES_MAX || memchr(line, 0, (size_t)bytes)) {
			error = fail(load, source, "this is not a settings file");
			break;
		}
		line[strcspn(line, "\n")] = 0;
		error = load_line(load, line, source);
	}
	if (!error && ferror(file))
		error = fail(load, path, strerror(errno));
	free(line);
	fclose(file);
	return error;
}

static int load_environment_one(struct load *load, const struct setting *row, const char *daemon)
{
	char name[160];

	int bytes = snprintf(name, sizeof name, "BATON_%s%s%s", daemon, *daemon ? "_" : "", row->name);
	CHECK(bytes > 0 && (size_t)bytes < sizeof name);
	for (char *at = name; *at; at++)
		*at = *at == '-' ? '_' : (char)toupper((unsigned char)*at);
	const char *value = getenv(name);
	return value ? set(load, row, value, name) : 0;
}

static int load_environment(struct load *load)
{
	const struct settings *settings = load->settings;
	int error = 0;

	/* All general names first, so that the daemon's own names win. */
	source_begin(load);
	for (size_t i = 0; i < settings->row_count && !error; i++)
		error = load_environment_one(load, &settings->rows[i], "");
	source_begin(load);
	for (size_t i = 0; i < settings->row_count && !error; i++)
		error = load_environment_one(load, &settings->rows[i], settings->daemon);
	return error;
}

static enum print_what print_flag(const char *name, size_t bytes)
{
	for (size_t i = 0; i < ARRAY_COUNT(print_flags); i++)
		if (strlen(print_flags[i].flag) == bytes && !strncmp(print_flags[i].flag, name, bytes))
			return print_flags[i].what;
	return PRINT_NOTHING;
}

/* One flag at argv[*at]. @apply false: only look for --config and the printing flags. */
static int load_flag(struct load *load, int argc, char **argv, int *at, bool apply)
{
	const char *name = argv[*at] + 2, *value = strchr(name, '=');
	size_t bytes = value ? (size_t)(value++ - name) : strlen(name);
	const struct setting *row = row_find(load->settings, name, bytes);
	char source[128];

	snprintf(source, sizeof source, "--%.*s", (int)MIN(bytes, (size_t)100), name);
	enum print_what print = print_flag(name, bytes);
	if (print && !row) {
		load->print = print;
		return value ? fail(load, source, "takes no value") : 0;
	}
	bool config = !row && bytes == 6 && !strncmp(name, "config", 6);
	bool negated = false;
	if (!row && !config && bytes > 3 && !strncmp(name, "no-", 3)) {
		row = row_find(load->settings, name + 3, bytes - 3);
		negated = row && row->type == SETTING_BOOL;
		if (!negated)
			row = NULL;
	}
	if (!row && !config)
		return fail_unknown(load, "flags", "--", name, bytes);
	if (row && row->type == SETTING_BOOL) {
		if (negated && value)
			return fail(load, source, "takes no value");
		return apply ? set(load, row, value ? value : negated ? "false" : "true", source) : 0;
	}
	if (!value && *at + 1 >= argc)
		return fail(load, source, "a value must follow");
	if (!value)
		value = argv[++*at];
	if (config) {
		load->path = value;
		return 0;
	}
	return apply ? set(load, row, value, source) : 0;
}

static int load_flags(struct load *load, int argc, char **argv, bool apply)
{
	const struct settings *settings = load->settings;
	bool positional_taken = false;
	int error = 0;

	source_begin(load);
	for (int at = 1; at < argc && !error; at++) {
		const char *word = argv[at];
		if (!strcmp(word, "-h")) {
			load->print = PRINT_HELP;
		} else if (word[0] == '-' && word[1] == '-' && word[2]) {
			error = load_flag(load, argc, argv, &at, apply);
		} else if (settings->positional && word[0] && word[0] != '-' && !positional_taken) {
			const struct setting *row =
				row_find(settings, settings->positional, strlen(settings->positional));
			CHECK(row);
			positional_taken = true;
			error = apply ? set(load, row, word, settings->positional) : 0;
		} else {
			error = fail(load, word, "is not an option; --help lists what there is");
		}
	}
	return error;
}

static void print(const struct load *load)
{
	char room[96];

	switch (load->print) {
	case PRINT_HELP:
		settings__print_help(load->settings, stdout);
		break;
	case PRINT_VERSION:
		printf("%s %s\n", settings__program(load->settings, room), baton_version);
		break;
	case PRINT_CONFIG:
		settings_print(load->settings, load->config, stdout);
		break;
	case PRINT_SAMPLE:
		settings__print_sample(load->settings, stdout);
		break;
	case PRINT_DOCS:
		settings__print_docs(load->settings, stdout);
		break;
	case PRINT_NOTHING:
		break;
	}
	fflush(stdout);
}

int settings_load(const struct settings *settings, int argc, char **argv, void *config)
{
	struct load load = { .settings = settings, .config = config };

	for (size_t i = 0; i < settings->row_count; i++)
		if (settings->rows[i].type == SETTING_TEXT || settings->rows[i].type == SETTING_LIST)
			*(const char **)((char *)config + settings->rows[i].offset) = NULL;
	load.given = calloc(settings->row_count + 1, sizeof *load.given);
	if (!load.given)
		return -ENOMEM;
	int error = load_initial(&load);
	if (!error)
		error = load_flags(&load, argc, argv, false);
	/* Help must come out even where the file or the environment is wrong. */
	bool plain = load.print && load.print != PRINT_CONFIG;
	if (!error && !plain)
		error = load_file(&load);
	if (!error && !plain)
		error = load_environment(&load);
	if (!error && !plain)
		error = load_flags(&load, argc, argv, true);
	free(load.given);
	if (!error && load.print)
		print(&load);
	if (error || load.print)
		settings_free(settings, config);
	return error ? error : load.print != PRINT_NOTHING;
}

void settings_free(const struct settings *settings, void *config)
{
	for (size_t i = 0; i < settings->row_count; i++) {
		if (settings->rows[i].type != SETTING_TEXT && settings->rows[i].type != SETTING_LIST)
			continue;
		const char **field = (const char **)((char *)config + settings->rows[i].offset);
		free((char *)*field);
		*field = NULL;
	}
}

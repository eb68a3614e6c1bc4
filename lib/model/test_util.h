/* For the tests of this folder: golden files line by line, models by name, text to ids. */
#ifndef BATON_MODEL_TEST_UTIL_H
#define BATON_MODEL_TEST_UTIL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/model.h"
#include "model/tokenizer.h"

#ifndef TEST_GOLDEN
#error "the build names the folder of golden files"
#endif

struct golden {
	FILE *file;
	char *line;
	size_t capacity;
	unsigned row; /* from 1; for messages */
};

static inline void golden_open(struct golden *g, const char *name)
{
	char path[PATH_MAX];
	snprintf(path, sizeof(path), "%s/%s", TEST_GOLDEN, name);
	*g = (struct golden){ .file = fopen(path, "r") };
	if (!g->file)
		fail_msg("%s does not open", path);
}

/* The next row, which the caller decrefs, or NULL; then the file is closed. */
static inline json_t *golden_next(struct golden *g)
{
	ssize_t bytes = getline(&g->line, &g->capacity, g->file);
	if (bytes <= 0) {
		fclose(g->file);
		free(g->line);
		return NULL;
	}
	g->row++;
	json_error_t error;
	json_t *row = json_loadb(g->line, (size_t)bytes, JSON_ALLOW_NUL, &error);
	if (!row)
		fail_msg("row %u: %s", g->row, error.text);
	return row;
}

static inline struct model *golden_model(const char *name, int flags)
{
	char path[PATH_MAX], error[256];
	struct model *model;
	if (name[0] == '/')
		snprintf(path, sizeof(path), "%s", name);
	else
		snprintf(path, sizeof(path), "%s/%s", TEST_GOLDEN, name);
	if (model_open(path, flags, &model, error, sizeof(error)) < 0)
		fail_msg("%s: %s", path, error);
	return model;
}

/* The demo model: $BATON_TEST_MODEL, $BATON_MODEL or the cache. NULL, after a line that says so, when absent. */
static inline const char *demo_model_path(void)
{
	static char path[PATH_MAX];
	const char *given = getenv("BATON_TEST_MODEL"), *home = getenv("HOME");
	if (!given)
		given = getenv("BATON_MODEL");
	if (given)
		snprintf(path, sizeof(path), "%s", given);
	else
		snprintf(path, sizeof(path), "%s/.cache/baton/SmolLM2-135M-Instruct.Q4_1.gguf",
			 home ? home : "");
	if (access(path, R_OK) == 0)
		return path;
	fprintf(stderr, "skipped: the demo model %s is not there (BATON_MODEL names another)\n", path);
	return NULL;
}

static inline void print_ids(const char *what, const uint32_t ids[], size_t count)
{
	fprintf(stderr, "  %s:", what);
	for (size_t i = 0; i < count && i < 60; i++)
		fprintf(stderr, " %u", ids[i]);
	fprintf(stderr, "\n");
}

/* @wanted: JSON array of ids. Says where they part; @what names the case. */
static inline void assert_ids(const char *what, const struct token_ids *ids, const json_t *wanted)
{
	size_t count = json_array_size(wanted);
	bool same = count == ids->count;
	for (size_t i = 0; same && i < count; i++)
		same = ids->v[i] == (uint32_t)json_integer_value(json_array_get(wanted, i));
	if (same)
		return;
	fprintf(stderr, "%s\n  wanted:", what);
	for (size_t i = 0; i < count && i < 60; i++)
		fprintf(stderr, " %lld", (long long)json_integer_value(json_array_get(wanted, i)));
	fprintf(stderr, "\n");
	print_ids("got", ids->v, ids->count);
	fail_msg("%s: other ids", what);
}

#endif

#include "tests/cores/table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"

#define CELL_BYTES 512

static const char *reason_word(enum returned_reason reason)
{
	static const char *const words[] = { "?",        "refused",   "preempted",
					     "transfer", "peer lost", "drain",
					     "no room",  "timeout",   "model" };
	return reason < ARRAY_COUNT(words) ? words[reason] : "?";
}

static const char *action_word(enum node_action_kind kind)
{
	static const char *const words[NODE_ACTION_KIND_COUNT] = {
		[NODE_DO_RESERVE] = "reserve",
		[NODE_DO_SEND] = "send",
		[NODE_DO_RESEND] = "resend",
		[NODE_DO_CANCEL_SEND] = "cancel-send",
		[NODE_DO_FIRST_TOKENS] = "first-tokens",
		[NODE_DO_HAND_OVER] = "hand-over",
		[NODE_DO_RELEASE_PEER] = "release-peer",
		[NODE_DO_GRANT] = "grant",
		[NODE_DO_REFUSE] = "refuse",
		[NODE_DO_REVOKE] = "revoke",
		[NODE_DO_TOKENS] = "tokens",
		[NODE_DO_RETURNED] = "returned",
		[NODE_DO_FORGET] = "forget",
	};
	return words[kind];
}

void table_actions(const struct node_actions *actions, struct buf *out)
{
	for (uint32_t i = 0; i < actions->count; i++) {
		const struct node_action *action = &actions->v[i];
		buf_printf(out, "%s%s", i ? ", " : "; ", action_word(action->kind));
		if (action->kind == NODE_DO_RETURNED)
			buf_printf(out, " (%s)", reason_word(action->returned.reason));
	}
}

/* One cell, computed in a child, which may die. */
static void compute(const struct table *table, size_t column, size_t row, char ret_text[CELL_BYTES])
{
	int ends[2];
	fflush(stdout);
	CHECK(pipe(ends) == 0);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		struct buf out;
		if (!freopen("/dev/null", "w", stderr))
			_exit(2);
		buf_init(&out, 0);
		table->cell(column, row, &out);
		_exit(write(ends[1], out.data, out.bytes) == (ssize_t)out.bytes ? 0 : 2);
	}
	close(ends[1]);
	ssize_t bytes = read(ends[0], ret_text, CELL_BYTES - 1);
	close(ends[0]);
	int status;
	CHECK(waitpid(child, &status, 0) == child);
	if (WIFSIGNALED(status))
		snprintf(ret_text, CELL_BYTES, "cannot be");
	else
		ret_text[MAX(bytes, 0)] = 0;
	CHECK(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
}

static void write_row(const struct table *table, size_t row, struct buf *out)
{
	char text[CELL_BYTES];
	buf_printf(out, "| %s |", table->rows[row]);
	for (size_t column = 0; column < table->column_count; column++) {
		compute(table, column, row, text);
		buf_printf(out, " %s |", text);
	}
}

static int check_document(const struct table *table, const char *path)
{
	static char text[1 << 20];
	int failed = 0;
	FILE *file = fopen(path, "r");
	if (!file) {
		fprintf(stderr, "%s cannot be read\n", path);
		return 1;
	}
	text[fread(text, 1, sizeof text - 1, file)] = 0;
	fclose(file);
	for (size_t row = 0; row < table->row_count; row++) {
		struct buf line;
		buf_init(&line, 0);
		write_row(table, row, &line);
		buf_append(&line, "\n", 1);
		if (!strstr(text, line.data)) {
			fprintf(stderr, "%s lacks this row:\n%s", path, line.data);
			failed = 1;
		}
		buf_fini(&line);
	}
	return failed;
}

int table_main(const struct table *table, const char *document, const char *argument)
{
	if (!argument || strcmp(argument, "--print") != 0)
		return check_document(table, document);
	printf("| event |");
	for (size_t column = 0; column < table->column_count; column++)
		printf(" %s |", table->columns[column]);
	printf("\n|---|");
	for (size_t column = 0; column < table->column_count; column++)
		printf("---|");
	printf("\n");
	for (size_t row = 0; row < table->row_count; row++) {
		struct buf line;
		buf_init(&line, 0);
		write_row(table, row, &line);
		printf("%s\n", line.data);
		buf_fini(&line);
	}
	return 0;
}

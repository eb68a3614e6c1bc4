/* A states x events table: computed by walking every cell of a core, compared with the one in
 * docs/. A cell that the document lacks, or that says something else, fails. */
#ifndef BATON_TESTS_CORES_TABLE_H
#define BATON_TESTS_CORES_TABLE_H

#include <stddef.h>

#include "base/buf.h"
#include "node/role.h"

struct table {
	const char *const *columns; /* states */
	size_t column_count;
	const char *const *rows; /* events */
	size_t row_count;
	/* Brings a fresh core into the state, gives it the event and writes what came of it. It
	 * runs in a child process; when it dies of a CHECK the cell says that this cannot be. */
	void (*cell)(size_t column, size_t row, struct buf *out);
};

/* `--print` as @argument prints the table for the document. Return: exit status. */
int table_main(const struct table *table, const char *document, const char *argument);

/* "tokens, first-tokens, returned (refused), ..." */
void table_actions(const struct node_actions *actions, struct buf *out);

#endif

/* What settings.c (sources) and settings_value.c (one value as text) share. */
#ifndef BATON_BASE_SETTINGS_INTERNAL_H
#define BATON_BASE_SETTINGS_INTERNAL_H

#include "base/buf.h"
#include "base/settings.h"

/*
 * Parses @text into the row's field of @config. @append: a list grows instead of being replaced.
 * On failure (-EINVAL, -ENOMEM) @problem holds what is wrong and what would be right.
 */
int settings__value_set(const struct setting *row, const char *text, bool append, void *config,
			struct buf *problem);
/* Appends the field as settings__value_set reads it; a list's values are joined by newlines. */
void settings__value_format(const struct setting *row, const void *config, struct buf *out);
/* "0 to 65535", "one of: auto, shm, tcp", ... */
void settings__value_describe(const struct setting *row, struct buf *out);

/* How the program calls itself; @room for it where that is made up. */
const char *settings__program(const struct settings *settings, char room[96]);

void settings__print_help(const struct settings *settings, FILE *out);
void settings__print_sample(const struct settings *settings, FILE *out);
void settings__print_docs(const struct settings *settings, FILE *out);

#endif

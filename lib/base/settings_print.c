/* What a settings table looks like to people: help, effective values, sample file, docs. */
#include "base/settings_internal.h"

#include <string.h>

static void print_wrapped(FILE *out, const char *text, int indent, const char *lead)
{
	int column = indent;

	while (*text) {
		size_t word = strcspn(text, " ");
		if (column > indent && column + 1 + (int)word > 98) {
			fprintf(out, "\n%s%*s", lead, indent - (int)strlen(lead), "");
			column = indent;
		} else if (column > indent) {
			fputc(' ', out);
			column++;
		}
		fwrite(text, 1, word, out);
		column += (int)word;
		text += word;
		text += strspn(text, " ");
	}
	fputc('\n', out);
}

static const char *type_word(const struct setting *row)
{
	switch (row->type) {
	case SETTING_BOOL:
		return "";
	case SETTING_COUNT:
	case SETTING_REAL:
		return "N";
	case SETTING_BYTES:
		return "BYTES";
	case SETTING_DURATION:
		return "TIME";
	case SETTING_CHOICE:
		return "WORD";
	case SETTING_TEXT:
	case SETTING_LIST:
		return "TEXT";
	}
	return "";
}

/* Help, range, unit and default of a row as one paragraph. */
static void row_paragraph(const struct setting *row, bool with_initial, struct buf *out)
{
	buf_append_text(out, row->help);
	if (row->type != SETTING_BOOL && row->type != SETTING_TEXT) {
		buf_append_text(out, " (");
		settings__value_describe(row, out);
		if (row->unit && row->unit[0] && row->type != SETTING_DURATION && row->type != SETTING_BYTES)
			buf_printf(out, "; unit: %s", row->unit);
		buf_append_text(out, ")");
	}
	if (with_initial && row->initial && row->initial[0])
		buf_printf(out, " [%s]", row->initial);
}

static void print_row_help(const struct setting *row, FILE *out)
{
	struct buf text;
	char flag[96];

	bool on = row->type == SETTING_BOOL && row->initial && !strcmp(row->initial, "true");
	snprintf(flag, sizeof flag, "  --%s%s%s%s", on ? "no-" : "", row->name,
		 row->type == SETTING_BOOL ? "" : " ", type_word(row));
	fprintf(out, "%-33s ", flag);
	if (strlen(flag) > 33)
		fprintf(out, "\n%34s", "");
	buf_init(&text, 0);
	row_paragraph(row, !on, &text);
	print_wrapped(out, text.data ? text.data : "", 34, "");
	buf_fini(&text);
}

void settings__print_help(const struct settings *settings, FILE *out)
{
	char prefix[64], room[96];
	const char *program = settings__program(settings, room);

	snprintf(prefix, sizeof prefix, "%s", settings->daemon);
	for (char *at = prefix; *at; at++)
		*at = *at == '-' ? '_' : *at >= 'a' && *at <= 'z' ? (char)(*at - 'a' + 'A') : *at;
	fprintf(out, "%s: %s\n\nUsage: %s [OPTIONS]", program, settings->summary, program);
	if (settings->positional)
		fprintf(out, " [%s]", settings->positional);
	fprintf(out, "\n\n");
	for (size_t i = 0; i < settings->row_count; i++)
		print_row_help(&settings->rows[i], out);
	fprintf(out,
		"  --config FILE                   Settings file [/etc/baton/%s.conf]\n"
		"  --print-config                  Print what is in effect, as a settings file\n"
		"  --print-sample                  Print a commented settings file\n"
		"  --print-docs                    Print the settings as a Markdown table\n"
		"  --version, --help\n\n"
		"Each setting may also stand in the file (name = value) or in the environment\n"
		"(BATON_NAME, or BATON_%s_NAME for this daemon alone); flags win, then the environment.\n",
		settings->daemon, prefix);
}

static bool needs_quotes(const char *value, size_t bytes)
{
	if (!bytes)
		return false;
	return strchr(" \t\"#", value[0]) || strchr(" \t", value[bytes - 1]) ||
	       memchr(value, '#', bytes) || memchr(value, '\n', bytes);
}

static void print_value(const char *name, const char *value, size_t bytes, FILE *out)
{
	fprintf(out, "%s = ", name);
	if (!needs_quotes(value, bytes)) {
		fprintf(out, "%.*s\n", (int)bytes, value);
		return;
	}
	fputc('"', out);
	for (size_t i = 0; i < bytes; i++) {
		if (value[i] == '\n') {
			fputs("\\n", out);
			continue;
		}
		if (value[i] == '"' || value[i] == '\\')
			fputc('\\', out);
		fputc(value[i], out);
	}
	fputs("\"\n", out);
}

void settings_print(const struct settings *settings, const void *config, FILE *out)
{
	for (size_t i = 0; i < settings->row_count; i++) {
		const struct setting *row = &settings->rows[i];
		struct buf text;
		buf_init(&text, 0);
		settings__value_format(row, config, &text);
		const char *value = text.data ? text.data : "";
		size_t bytes = strlen(value);
		if (row->secret && bytes) {
			fprintf(out, "%s = ***\n", row->name);
		} else if (row->type == SETTING_LIST) {
			/* One line each; an empty list is one empty line, which reads back as empty. */
			do {
				bytes = strcspn(value, "\n");
				print_value(row->name, value, bytes, out);
				value += bytes;
			} while (*value++);
		} else {
			print_value(row->name, value, bytes, out);
		}
		buf_fini(&text);
	}
}

void settings__print_sample(const struct settings *settings, FILE *out)
{
	char room[96];

	fprintf(out, "# %s: %s\n# Copy to /etc/baton/%s.conf; what stays commented out keeps its default.\n",
		settings__program(settings, room), settings->summary, settings->daemon);
	for (size_t i = 0; i < settings->row_count; i++) {
		const struct setting *row = &settings->rows[i];
		struct buf text;
		buf_init(&text, 0);
		row_paragraph(row, false, &text);
		fprintf(out, "\n# ");
		print_wrapped(out, text.data ? text.data : "", 2, "# ");
		fprintf(out, "#%s = %s\n", row->name, row->initial ? row->initial : "");
		buf_fini(&text);
	}
}

void settings__print_docs(const struct settings *settings, FILE *out)
{
	char room[96];

	fprintf(out, "## %s\n\n%s\n\n| setting | default | meaning |\n|---|---|---|\n",
		settings__program(settings, room), settings->summary);
	for (size_t i = 0; i < settings->row_count; i++) {
		const struct setting *row = &settings->rows[i];
		struct buf text;
		buf_init(&text, 0);
		row_paragraph(row, false, &text);
		fprintf(out, "| `%s` | %s%s%s | %s |\n", row->name, row->initial && *row->initial ? "`" : "",
			row->initial ? row->initial : "", row->initial && *row->initial ? "`" : "",
			text.data ? text.data : "");
		buf_fini(&text);
	}
}

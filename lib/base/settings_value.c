/* One setting's value: from text, to text, and the words for what it may be. */
#include "base/settings_internal.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"

struct unit {
	const char *name;
	uint64_t scale;
};

static const struct unit duration_units[] = {
	{ "h", 3600 * NS_PER_S }, { "m", 60 * NS_PER_S }, { "s", NS_PER_S },
	{ "ms", NS_PER_MS },      { "us", NS_PER_US },    { "ns", 1 },
};

static const struct unit byte_units[] = {
	{ "T", UINT64_C(1) << 40 },
	{ "G", UINT64_C(1) << 30 },
	{ "M", UINT64_C(1) << 20 },
	{ "K", UINT64_C(1) << 10 },
};

static uint64_t duration_scale(const char *name, size_t name_bytes)
{
	for (size_t i = 0; i < ARRAY_COUNT(duration_units); i++)
		if (strlen(duration_units[i].name) == name_bytes &&
		    !strncmp(duration_units[i].name, name, name_bytes))
			return duration_units[i].scale;
	return 0;
}

static uint64_t row_scale(const struct setting *row)
{
	if (row->type != SETTING_DURATION)
		return 1;
	uint64_t scale = duration_scale(row->unit, strlen(row->unit));
	CHECK(scale); /* a duration row names its unit */
	return scale;
}

/* Digits, perhaps with a fraction, times the scale of the suffix. */
static int parse_scaled(const char *text, uint64_t (*suffix_scale)(const struct setting *, const char *),
			const struct setting *row, uint64_t *ret_value)
{
	char *end;

	if (!isdigit((unsigned char)text[0]))
		return -EINVAL;
	errno = 0;
	uint64_t whole = strtoull(text, &end, 10);
	if (errno)
		return -ERANGE;
	double fraction = 0;
	if (*end == '.' && isdigit((unsigned char)end[1])) {
		char *after;
		fraction = strtod(end, &after);
		/* strtod would take an exponent too. */
		if (strspn(end + 1, "0123456789") != (size_t)(after - end - 1))
			return -EINVAL;
		end = after;
	}
	while (*end == ' ')
		end++;
	uint64_t scale = suffix_scale(row, end), value;
	if (!scale || (fraction != 0 && scale == 1))
		return -EINVAL;
	if (__builtin_mul_overflow(whole, scale, &value) ||
	    __builtin_add_overflow(value, (uint64_t)llround(fraction * (double)scale), &value))
		return -ERANGE;
	*ret_value = value;
	return 0;
}

static uint64_t suffix_none(const struct setting *row, const char *suffix)
{
	return *suffix ? 0 : 1;
}

static uint64_t suffix_duration(const struct setting *row, const char *suffix)
{
	return *suffix ? duration_scale(suffix, strlen(suffix)) : row_scale(row);
}

static uint64_t suffix_bytes(const struct setting *row, const char *suffix)
{
	if (!*suffix || !strcmp(suffix, "B"))
		return 1;
	for (size_t i = 0; i < ARRAY_COUNT(byte_units); i++)
		if (toupper((unsigned char)suffix[0]) == byte_units[i].name[0] &&
		    (!suffix[1] || !strcmp(suffix + 1, "iB")))
			return byte_units[i].scale;
	return 0;
}

static int parse_bool(const char *text, bool *ret_value)
{
	static const char *const words[] = { "false", "true", "no", "yes", "off", "on", "0", "1" };

	for (size_t i = 0; i < ARRAY_COUNT(words); i++) {
		if (strcasecmp(text, words[i]))
			continue;
		*ret_value = i & 1;
		return 0;
	}
	return -EINVAL;
}

static int parse_real(const char *text, double *ret_value)
{
	char *end;

	errno = 0;
	double value = strtod(text, &end);
	if (end == text || *end || isspace((unsigned char)text[0]) || !isfinite(value))
		return -EINVAL;
	*ret_value = value;
	return 0;
}

static int parse_choice(const struct setting *row, const char *text, uint64_t *ret_value)
{
	for (uint64_t i = 0; row->choices[i]; i++) {
		if (strcmp(row->choices[i], text))
			continue;
		*ret_value = i;
		return 0;
	}
	return -EINVAL;
}

static bool in_range(const struct setting *row, double value)
{
	return value >= row->min && (row->max == 0 || value <= row->max);
}

static const char *format_number(double value, char room[32])
{
	snprintf(room, 32, "%.15g", value);
	return room;
}

static void describe_range(const struct setting *row, struct buf *out)
{
	char low[32], high[32];
	bool plain = row->type == SETTING_REAL || row->type == SETTING_COUNT;
	const char *unit = plain ? "" : row->type == SETTING_BYTES ? " bytes" : row->unit;

	if (row->max != 0)
		buf_printf(out, "%s to %s%s%s", format_number(row->min, low),
			   format_number(row->max, high), row->type == SETTING_DURATION ? " " : "", unit);
	else if (row->min != 0)
		buf_printf(out, "%s%s%s or more", format_number(row->min, low),
			   row->type == SETTING_DURATION ? " " : "", unit);
	else
		buf_append_text(out, row->type == SETTING_REAL ? "a number" : "0 or more");
}

void settings__value_describe(const struct setting *row, struct buf *out)
{
	switch (row->type) {
	case SETTING_BOOL:
		buf_append_text(out, "true or false");
		break;
	case SETTING_COUNT:
	case SETTING_REAL:
		describe_range(row, out);
		break;
	case SETTING_BYTES:
		describe_range(row, out);
		buf_append_text(out, ", as 4096, 64K, 16M or 2G");
		break;
	case SETTING_DURATION:
		describe_range(row, out);
		buf_printf(out, ", as 20ms, 3s or 5m (without a unit: %s)", row->unit);
		break;
	case SETTING_CHOICE:
		buf_append_text(out, "one of: ");
		for (size_t i = 0; row->choices[i]; i++)
			buf_printf(out, "%s%s", i ? ", " : "", row->choices[i]);
		break;
	case SETTING_TEXT:
		buf_append_text(out, "a text");
		break;
	case SETTING_LIST:
		buf_append_text(out, "a text; may be given several times");
		break;
	}
}

static int set_text(const char **field, const char *text, bool append)
{
	struct buf joined;

	buf_init(&joined, 0);
	if (append && (*field)[0])
		buf_printf(&joined, "%s\n", *field);
	buf_append_text(&joined, text);
	char *value = buf_steal(&joined);
	if (!value)
		return -ENOMEM;
	free((char *)*field);
	*field = value;
	return 0;
}

static int set_number(const struct setting *row, const char *text, void *field)
{
	uint64_t value = 0;
	int error;

	switch (row->type) {
	case SETTING_COUNT:
		error = parse_scaled(text, suffix_none, row, &value);
		break;
	case SETTING_BYTES:
		error = parse_scaled(text, suffix_bytes, row, &value);
		break;
	case SETTING_DURATION:
		error = parse_scaled(text, suffix_duration, row, &value);
		break;
	default:
		error = parse_choice(row, text, &value);
		break;
	}
	if (!error && row->type != SETTING_CHOICE &&
	    !in_range(row, (double)value / (double)row_scale(row)))
		error = -ERANGE;
	if (!error)
		*(uint64_t *)field = value;
	return error;
}

int settings__value_set(const struct setting *row, const char *text, bool append, void *config,
			struct buf *problem)
{
	void *field = (char *)config + row->offset;
	double real;
	int error;

	switch (row->type) {
	case SETTING_BOOL:
		error = parse_bool(text, field);
		break;
	case SETTING_REAL:
		error = parse_real(text, &real);
		if (!error && (row->min != 0 || row->max != 0) && !in_range(row, real))
			error = -ERANGE;
		if (!error)
			*(double *)field = real;
		break;
	case SETTING_TEXT:
	case SETTING_LIST:
		error = set_text(field, text, append && row->type == SETTING_LIST);
		break;
	default:
		error = set_number(row, text, field);
		break;
	}
	if (error == -ENOMEM) {
		buf_append_text(problem, "out of memory");
	} else if (error) {
		buf_printf(problem, "'%s' %s; give ", row->secret ? "***" : text,
			   error == -ERANGE ? "is out of range" : "is not valid");
		settings__value_describe(row, problem);
		error = -EINVAL;
	}
	return error;
}

static void format_duration(const struct setting *row, uint64_t value, struct buf *out)
{
	/* The row's own unit where it divides, so that 3000ms stays what was written. */
	uint64_t scale = row_scale(row);
	if (value % scale == 0) {
		buf_printf(out, "%llu%s", (unsigned long long)(value / scale), row->unit);
		return;
	}
	for (size_t i = 0; i < ARRAY_COUNT(duration_units); i++) {
		if (value % duration_units[i].scale)
			continue;
		buf_printf(out, "%llu%s", (unsigned long long)(value / duration_units[i].scale),
			   duration_units[i].name);
		return;
	}
}

static void format_bytes(uint64_t value, struct buf *out)
{
	for (size_t i = 0; i < ARRAY_COUNT(byte_units); i++) {
		if (!value || value % byte_units[i].scale)
			continue;
		buf_printf(out, "%llu%s", (unsigned long long)(value / byte_units[i].scale),
			   byte_units[i].name);
		return;
	}
	buf_printf(out, "%llu", (unsigned long long)value);
}

static void format_real(double value, struct buf *out)
{
	char room[40];

	for (int digits = 6; digits <= 17; digits++) {
		snprintf(room, sizeof room, "%.*g", digits, value);
		if (strtod(room, NULL) == value)
			break;
	}
	buf_append_text(out, room);
}

void settings__value_format(const struct setting *row, const void *config, struct buf *out)
{
	const void *field = (const char *)config + row->offset;

	switch (row->type) {
	case SETTING_BOOL:
		buf_append_text(out, *(const bool *)field ? "true" : "false");
		break;
	case SETTING_COUNT:
		buf_printf(out, "%llu", (unsigned long long)*(const uint64_t *)field);
		break;
	case SETTING_BYTES:
		format_bytes(*(const uint64_t *)field, out);
		break;
	case SETTING_DURATION:
		format_duration(row, *(const uint64_t *)field, out);
		break;
	case SETTING_REAL:
		format_real(*(const double *)field, out);
		break;
	case SETTING_CHOICE:
		buf_append_text(out, row->choices[*(const uint64_t *)field]);
		break;
	case SETTING_TEXT:
	case SETTING_LIST:
		buf_append_text(out, *(const char *const *)field);
		break;
	}
}

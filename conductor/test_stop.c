/* Every row of the golden stop cases, plus properties against a slow twin. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/rand.h"
#include "conductor/stop.h"
#include "conductor/text.h"

static size_t from_hex(const char *hex, char *out)
{
	size_t bytes = strlen(hex) / 2;
	for (size_t i = 0; i < bytes; i++) {
		char pair[3] = { hex[2 * i], hex[2 * i + 1], 0 };
		out[i] = (char)strtoul(pair, NULL, 16);
	}
	return bytes;
}

static void check_row(json_t *row)
{
	const char *name = json_string_value(json_object_get(row, "name"));
	json_t *pieces = json_object_get(row, "pieces_hex"), *stops = json_object_get(row, "stops");
	json_t *safe_len = json_object_get(row, "safe_len");
	struct stop_text texts[64];
	struct stop_set set;
	struct stop_state state;
	struct buf raw, want, got;
	size_t i;
	json_t *item;
	assert_true(json_array_size(stops) <= ARRAY_COUNT(texts));
	json_array_foreach(stops, i, item)
		texts[i] = (struct stop_text){ json_string_value(item),
					       (uint32_t)json_string_length(item), NULL };
	assert_int_equal(stop_set_init(&set, texts, (uint32_t)json_array_size(stops)), 0);
	assert_int_equal(stop_state_init(&state, &set), 0);
	buf_init(&raw, 0);
	buf_init(&want, 0);
	buf_init(&got, 0);
	uint32_t used = 0;
	json_array_foreach(pieces, i, item) {
		char piece[4096];
		size_t bytes = from_hex(json_string_value(item), piece);
		buf_append(&raw, piece, bytes);
		used++;
		bool matched = stop_feed(&set, &state, piece, bytes, true);
		json_int_t safe = json_integer_value(json_array_get(safe_len, i));
		if (state.safe != (uint64_t)safe)
			fail_msg("%s: token %zu: %llu bytes safe, want %lld", name, i,
				 (unsigned long long)state.safe, (long long)safe);
		if (matched)
			break;
	}
	const char *cause = json_string_value(json_object_get(row, "cause"));
	json_t *matched = json_object_get(row, "matched");
	assert_int_equal(used, json_integer_value(json_object_get(row, "tokens_used")));
	assert_int_equal(state.matched, !strcmp(cause, "stop_string"));
	if (state.matched) {
		const struct stop_text *stop = &set.texts[state.which];
		assert_int_equal(stop->bytes, json_string_length(matched));
		assert_memory_equal(stop->text, json_string_value(matched), stop->bytes);
	}
	/* The text, through the same rendering that clients get. */
	json_t *text = json_object_get(row, "text");
	text_json(&want, json_string_value(text), json_string_length(text));
	text_json(&got, raw.data ? raw.data : "", state.matched ? state.cut : raw.bytes);
	assert_string_equal(got.data, want.data);
	buf_fini(&raw);
	buf_fini(&want);
	buf_fini(&got);
	stop_state_fini(&state);
	stop_set_fini(&set);
}

static void test_golden(void **state)
{
	FILE *file = fopen(STOPS_JSONL, "r");
	char line[65536];
	uint32_t rows = 0;
	assert_non_null(file);
	while (fgets(line, sizeof line, file)) {
		json_t *row = json_loads(line, JSON_ALLOW_NUL, NULL);
		assert_non_null(row);
		check_row(row);
		json_decref(row);
		rows++;
	}
	fclose(file);
	assert_int_equal(rows, 38);
}

/* The rule as it is written, over the whole text, every time. */
static uint64_t slow_safe(const char *text, size_t bytes, const struct stop_text stops[],
			  uint32_t count, bool *ret_matched)
{
	uint64_t cut = UINT64_MAX, held = 0;
	for (uint32_t s = 0; s < count; s++) {
		char *found = memmem(text, bytes, stops[s].text, stops[s].bytes);
		if (found)
			cut = MIN(cut, (uint64_t)(found - text));
		for (uint32_t n = 1; n < stops[s].bytes && n <= bytes; n++)
			if (!memcmp(text + bytes - n, stops[s].text, n))
				held = MAX(held, n);
	}
	*ret_matched = cut != UINT64_MAX;
	return *ret_matched ? cut : bytes - MAX(held, text_utf8_unfinished(text, bytes));
}

static void test_twin(void **state)
{
	uint64_t seed = 7;
	for (int round = 0; round < 3000; round++) {
		char texts[4][12], text[256];
		struct stop_text stops[4];
		struct stop_set set;
		struct stop_state fast;
		uint32_t count = (uint32_t)(rand_next(&seed) % 4);
		for (uint32_t s = 0; s < count; s++) {
			uint32_t bytes = 1 + (uint32_t)(rand_next(&seed) % 11);
			for (uint32_t i = 0; i < bytes; i++)
				texts[s][i] = "ab\xc3\xa9"[rand_next(&seed) % (round % 2 ? 2 : 4)];
			stops[s] = (struct stop_text){ texts[s], bytes, NULL };
		}
		assert_int_equal(stop_set_init(&set, stops, count), 0);
		assert_int_equal(stop_state_init(&fast, &set), 0);
		size_t bytes = 0;
		bool matched = false;
		while (bytes < 200 && !matched) {
			size_t piece = rand_next(&seed) % 9;
			for (size_t i = 0; i < piece; i++)
				text[bytes + i] = "ab\xc3\xa9\xf0\x9f"[rand_next(&seed) %
								       (round % 2 ? 2 : 6)];
			bool got = stop_feed(&set, &fast, text + bytes, piece, true);
			bytes += piece;
			uint64_t safe = slow_safe(text, bytes, stops, count, &matched);
			assert_int_equal(got, matched);
			assert_int_equal(fast.safe, safe);
		}
		stop_state_fini(&fast);
		stop_set_fini(&set);
	}
}

static void test_bounds_and_arming(void **state)
{
	struct stop_set set;
	struct stop_state one;
	struct stop_text empty = { "", 0, NULL }, abc = { "abc", 3, NULL };
	assert_int_not_equal(stop_set_init(&set, &empty, 1), 0);
	assert_int_equal(stop_set_init(&set, &abc, 1), 0);
	assert_int_equal(stop_state_init(&one, &set), 0);
	/* Before min_tokens a match counts for nothing; a later one does. */
	assert_false(stop_feed(&set, &one, "xabc", 4, false));
	assert_int_equal(one.safe, 4);
	assert_true(stop_feed(&set, &one, "abcabc", 6, true));
	assert_int_equal(one.cut, 4);
	assert_int_equal(one.cut_end, 7);
	stop_state_fini(&one);
	stop_set_fini(&set);
}

static void test_json(void **state)
{
	static const struct {
		const char *text;
		size_t bytes;
		const char *want;
	} cases[] = {
		{ "a\0b", 3, "\"a\\u0000b\"" },
		{ "\"\\\n\t\r\x01\x7f", 7, "\"\\\"\\\\\\n\\t\\r\\u0001\\u007f\"" },
		{ "\xf0\x9f\xa6\x99", 4, "\"\xf0\x9f\xa6\x99\"" },
		{ "\xf0\x9f\xa6", 3, "\"\xef\xbf\xbd\"" },
		{ "\xf0\x9f" "A", 3, "\"\xef\xbf\xbd" "A\"" },
		{ "\xc0\x80", 2, "\"\xef\xbf\xbd\xef\xbf\xbd\"" },
		{ "\xed\xa0\x80", 3, "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"" },
	};
	for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
		struct buf out;
		buf_init(&out, 0);
		text_json(&out, cases[i].text, cases[i].bytes);
		assert_string_equal(out.data, cases[i].want);
		buf_fini(&out);
	}
	assert_int_equal(text_utf8_count("a\xc3\xa9\xff", 4), 3);
	assert_int_equal(text_utf8_unfinished("a\xe2\x82", 3), 2);
	assert_int_equal(text_utf8_unfinished("a\xe2\x82\xac", 4), 0);
	assert_int_equal(text_utf8_unfinished("\x80\x80", 2), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_golden),
		cmocka_unit_test(test_twin),
		cmocka_unit_test(test_bounds_and_arming),
		cmocka_unit_test(test_json),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Any bytes as the input of an HTTP connection: however they are cut, the same requests come out
 * of them, and a refusal ends them at the same one. (Which of two faults is named may differ: a
 * bound is passed in mid-token when the bytes come one by one.) */
#include "fuzz.h"

#include <string.h>

#include "net/http_parse.h"

/* What a connection saw, as text. */
static void note_request(const struct http_message *m, struct buf *out)
{
	buf_printf(out, "%s|%s|%s|%d|%d|%d|", http_message_method(m), m->path.data ? m->path.data : "",
		   m->query, m->http11, m->keep_alive, m->wants_continue);
	for (uint32_t i = 0; i < m->header_count; i++)
		buf_printf(out, "%s=%s|", m->head.data + m->headers[i].name,
			   m->head.data + m->headers[i].value);
	buf_append(out, m->body.data, m->body.bytes);
	buf_append_text(out, "\n");
}

static void drive(const uint8_t *data, size_t bytes, size_t piece, struct buf *out)
{
	struct http_message m;
	size_t at = 0;
	http_message_init(&m, 2048, 4096);
	while (at < bytes) {
		size_t take = bytes - at < piece ? bytes - at : piece, consumed = 0;
		int result = http_message_feed(&m, (const char *)data + at, take, &consumed);
		if (result < 0) {
			FUZZ_CHECK(m.refuse_status >= 400 && m.refuse_status < 600);
			FUZZ_CHECK(m.refuse_text && *m.refuse_text);
			FUZZ_CHECK(!strpbrk(m.refuse_text, "\"\\\r\n"));
			buf_append_text(out, "refused");
			break;
		}
		FUZZ_CHECK(consumed <= take);
		FUZZ_CHECK(m.body.bytes <= 4096 && m.header_count <= HTTP_HEADERS_MAX);
		at += consumed;
		if (result == 0) {
			FUZZ_CHECK(consumed == take);
			continue;
		}
		FUZZ_CHECK(m.complete && m.headers_complete);
		note_request(&m, out);
		if (!m.keep_alive)
			break; /* the server reads no further either */
		http_message_next(&m);
	}
	http_message_fini(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct buf whole, cut;
	buf_init(&whole, 0);
	buf_init(&cut, 0);
	drive(data, bytes, SIZE_MAX, &whole);
	for (size_t piece = 1; piece <= 7; piece += 3) {
		buf_clear(&cut);
		drive(data, bytes, piece, &cut);
		FUZZ_CHECK(whole.bytes == cut.bytes);
		FUZZ_CHECK(!whole.bytes || !memcmp(whole.data, cut.data, whole.bytes));
	}
	buf_fini(&whole);
	buf_fini(&cut);
	return 0;
}

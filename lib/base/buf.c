#include "base/buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

void buf_init(struct buf *buf, size_t bytes_max)
{
	*buf = (struct buf){ .bytes_max = bytes_max };
}

void buf_fini(struct buf *buf)
{
	free(buf->data);
	*buf = (struct buf){ 0 };
}

void buf_clear(struct buf *buf)
{
	buf->bytes = 0;
	buf->failed = false;
	if (buf->data)
		buf->data[0] = 0;
}

void *buf_reserve(struct buf *buf, size_t bytes)
{
	size_t need = buf->bytes + bytes + 1;
	if (buf->failed || need <= bytes || (buf->bytes_max && need - 1 > buf->bytes_max)) {
		buf->failed = true;
		return NULL;
	}
	if (need > buf->capacity) {
		size_t capacity = MAX(need, MAX(buf->capacity * 2, (size_t)128));
		char *data = realloc(buf->data, capacity);
		if (!data) {
			buf->failed = true;
			return NULL;
		}
		buf->data = data;
		buf->capacity = capacity;
	}
	return buf->data + buf->bytes;
}

void buf_append(struct buf *buf, const void *data, size_t bytes)
{
	void *room = buf_reserve(buf, bytes);
	if (!room)
		return;
	if (bytes)
		memcpy(room, data, bytes);
	buf->bytes += bytes;
	buf->data[buf->bytes] = 0;
}

void buf_append_text(struct buf *buf, const char *text)
{
	buf_append(buf, text, strlen(text));
}

void buf_vprintf(struct buf *buf, const char *format, va_list args)
{
	va_list again;
	va_copy(again, args);
	int bytes = vsnprintf(NULL, 0, format, again);
	va_end(again);
	if (bytes < 0) {
		buf->failed = true;
		return;
	}
	char *room = buf_reserve(buf, (size_t)bytes);
	if (!room)
		return;
	vsnprintf(room, (size_t)bytes + 1, format, args);
	buf->bytes += (size_t)bytes;
}

void buf_printf(struct buf *buf, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	buf_vprintf(buf, format, args);
	va_end(args);
}

void buf_consume(struct buf *buf, size_t bytes)
{
	CHECK(bytes <= buf->bytes);
	buf->bytes -= bytes;
	if (buf->data)
		memmove(buf->data, buf->data + bytes, buf->bytes + 1);
}

char *buf_steal(struct buf *buf)
{
	char *data = buf->failed ? NULL : buf->data ? buf->data : strdup("");
	if (buf->failed)
		free(buf->data);
	*buf = (struct buf){ .bytes_max = buf->bytes_max };
	return data;
}

/* Growing byte buffer. Appends after a failed allocation or past @bytes_max are dropped and
 * remembered in `failed`, so a long run of appends needs one check at its end. */
#ifndef BATON_BASE_BUF_H
#define BATON_BASE_BUF_H

#include <stdbool.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

struct buf {
	char *data; /* NUL-terminated when not NULL */
	size_t bytes, capacity;
	size_t bytes_max; /* 0: no bound */
	bool failed;
};

void buf_init(struct buf *buf, size_t bytes_max);
void buf_fini(struct buf *buf);
void buf_clear(struct buf *buf); /* keeps the memory */
void buf_append(struct buf *buf, const void *data, size_t bytes);
void buf_append_text(struct buf *buf, const char *text);
void buf_printf(struct buf *buf, const char *format, ...) __attribute__((format(printf, 2, 3)));
void buf_vprintf(struct buf *buf, const char *format, va_list args);
/* Room for @bytes more; NULL when that fails. Commit with buf->bytes += n. */
void *buf_reserve(struct buf *buf, size_t bytes);
void buf_consume(struct buf *buf, size_t bytes); /* drop from the front */
char *buf_steal(struct buf *buf);                /* caller frees; "" never NULL unless failed */

#endif

/* CHECK() is for our own mistakes and is always compiled in; bytes from outside are validated,
 * never CHECKed. DCHECK() is for walks too dear for production (-DBATON_DCHECK). */
#ifndef BATON_BASE_CHECK_H
#define BATON_BASE_CHECK_H

#include <assert.h>
#include <sys/param.h> /* MIN, MAX */

_Noreturn void check_failed(const char *condition, const char *file, int line, const char *function);

#define CHECK(condition)                                                                         \
	do {                                                                                     \
		if (__builtin_expect(!(condition), 0))                                           \
			check_failed(#condition, __FILE__, __LINE__, __func__);                  \
	} while (0)

#ifdef BATON_DCHECK
#define DCHECK(condition) CHECK(condition)
#else
#define DCHECK(condition) ((void)sizeof(condition))
#endif

#define ARRAY_COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define DIV_UP(a, b) (((a) + (b)-1) / (b))
#define ALIGN_UP(a, b) (DIV_UP(a, b) * (b))
#define container_of(pointer, type, member) ((type *)((char *)(pointer)-offsetof(type, member)))

#endif

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

_Noreturn void check_failed(const char *condition, const char *file, int line, const char *function)
{
	fprintf(stderr, "%s:%d: %s: check failed: %s\n", file, line, function, condition);
	abort();
}

const char *err_text(int error)
{
	switch (error) {
#define BATON_ERR_TEXT(name, value, text)                                                        \
	case value:                                                                              \
		return text;
		BATON_ERR_LIST(BATON_ERR_TEXT)
#undef BATON_ERR_TEXT
	default:
		return strerror(-error);
	}
}

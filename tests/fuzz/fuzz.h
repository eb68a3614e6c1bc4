/*
 * Fuzz targets: one function each, as libFuzzer calls it. With -Dfuzz=true (clang) a target is
 * built with libFuzzer as fuzz_NAME; in every build replay_NAME runs the corpus folder
 * tests/fuzz/corpus/NAME through it, as a normal test.
 *
 * A target aborts (FUZZ_CHECK) when what must always hold does not.
 */
#ifndef BATON_FUZZ_H
#define BATON_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

#define FUZZ_CHECK(condition)                                                                    \
	do {                                                                                     \
		if (!(condition)) {                                                              \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);          \
			abort();                                                                 \
		}                                                                                \
	} while (0)

#endif

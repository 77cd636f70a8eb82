/* Common to all targets: the function that libFuzzer calls, and what must never be false. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define MUST(condition)                                                                            \
	do {                                                                                       \
		if (!(condition))                                                                  \
			abort();                                                                   \
	} while (0)

/*
 * Any bytes as a file of settings, of which there are two kinds, with parsers of the same names: what is accepted, `check`
 * looks at.
 */
#define FUZZ_CONFIG(check)                                                                         \
	int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)                               \
	{                                                                                          \
		struct config c;                                                                   \
                                                                                                   \
		log_init((enum log_level)0); /* nothing is read of it here */                      \
		if (config_parse("fuzz.conf", (const char *)data, size, &c) < 0)                   \
			return 0;                                                                  \
		check(&c);                                                                         \
		config_deinit(&c);                                                                 \
		return 0;                                                                          \
	}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Forms of tests that are too long for each run: make soak sets WEIGHTD_LONG. `longer` lists the programs that ask. */
#ifndef TESTS_UNIT_LONG_FORM_H
#define TESTS_UNIT_LONG_FORM_H

#include <stdbool.h>
#include <stdlib.h>

static inline bool is_long_form(void)
{
	return getenv("WEIGHTD_LONG");
}

#endif

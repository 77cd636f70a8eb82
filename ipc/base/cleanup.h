/*
 * Ownership
 *
 * A variable that owns something is declared with cleanup(), and gives it away through take_ptr() or take_fd() on
 * one visible line. The compiler writes the error paths.
 */
#pragma once

#include <stdlib.h>

#define cleanup(fn) __attribute__((cleanup(fn)))

#define take_ptr(p)                                                                                \
	({                                                                                         \
		__typeof__(p) *take_p = &(p);                                                      \
		__typeof__(p) take_v = *take_p;                                                    \
		*take_p = NULL;                                                                    \
		take_v;                                                                            \
	})

#define take_fd(fd)                                                                                \
	({                                                                                         \
		int *take_p = &(fd);                                                               \
		int take_v = *take_p;                                                              \
		*take_p = -1;                                                                      \
		take_v;                                                                            \
	})

/* Declares x_freep() for cleanup(x_freep) from x_free(). */
#define CLEANUP_POINTER(type, fn)                                                                  \
	static inline void fn##p(type **p)                                                         \
	{                                                                                          \
		if (*p)                                                                            \
			fn(*p);                                                                    \
	}                                                                                          \
	struct cleanup_needs_semicolon

static inline void freep(void *p)
{
	free(*(void **)p);
}

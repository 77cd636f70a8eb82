#include "ipc/base/libsystemd.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>

#define SONAME "libsystemd.so.0"

static pthread_once_t once = PTHREAD_ONCE_INIT;

/* The result of opening it, written once. */
static struct {
	bool is_whole;
	char why[256];
	struct libsystemd functions;
} opened;

static void open_library(void)
{
	void *library = dlopen(SONAME, RTLD_NOW | RTLD_LOCAL);

	if (!library) {
		(void)snprintf(opened.why, sizeof(opened.why),
			       "%.160s; install it (Debian's package libsystemd0)", dlerror());
		return;
	}
	/* POSIX allows it, ISO C does not: a function pointer from dlsym(). */
#define X(field, result, parameters)                                                               \
	*(void **)&opened.functions.field = dlsym(library, "sd_" #field);                          \
	if (!opened.functions.field) {                                                             \
		(void)snprintf(opened.why, sizeof(opened.why),                                     \
			       SONAME " lacks sd_" #field                                          \
				      "; install that of systemd 232 or newer");                   \
		return;                                                                            \
	}
	LIBSYSTEMD_FUNCTIONS(X)
#undef X
	opened.is_whole = true;
}

const struct libsystemd *libsystemd_open(const char **ret_why)
{
	(void)pthread_once(&once, open_library); /* cannot fail */
	if (opened.is_whole)
		return &opened.functions;
	*ret_why = opened.why;
	return NULL;
}

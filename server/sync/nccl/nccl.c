#include "server/sync/nccl/nccl.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define SONAME "libnccl.so.2"
#define VERSION_MIN 21800

static int nccl_fail(int r, char ret_why[NCCL_WHY_SIZE], const char *what, const char *detail,
		     const char *way_out)
{
	(void)snprintf(ret_why, NCCL_WHY_SIZE, SONAME " %s%.120s; %s", what, detail, way_out);
	return r;
}

static int load_functions(struct nccl *n, void *library, char ret_why[NCCL_WHY_SIZE])
{
	/* POSIX allows it, ISO C does not: a function pointer from dlsym(). */
#define X(field, symbol, result, parameters)                                                       \
	*(void **)&n->field = dlsym(library, symbol);                                              \
	if (!n->field)                                                                             \
		return nccl_fail(-ENOSYS, ret_why, "lacks ", symbol,                               \
				 "NCCL 2.18 or later is needed");
	NCCL_FUNCTIONS(X)
#undef X
	return 0;
}

const char *nccl_format_version(int version, char ret[NCCL_VERSION_SIZE])
{
	(void)snprintf(ret, NCCL_VERSION_SIZE, "%d.%d.%d", version / 10000, version / 100 % 100,
		       version % 100);
	return ret;
}

static int check_version(struct nccl *n, char ret_why[NCCL_WHY_SIZE])
{
	char is[NCCL_VERSION_SIZE];
	nccl_result result = n->get_version(&n->version);

	if (result)
		return nccl_fail(-EIO, ret_why,
				 "does not return its version: ", n->error_string(result),
				 "install NCCL anew");
	if (n->version >= VERSION_MIN)
		return 0;
	return nccl_fail(-ENOSYS, ret_why, "is NCCL ", nccl_format_version(n->version, is),
			 "2.18 or later is needed");
}

int nccl_open(struct nccl *ret, char ret_why[NCCL_WHY_SIZE])
{
	void *library = dlopen(SONAME, RTLD_NOW | RTLD_LOCAL);
	struct nccl n = {0};
	int r;

	if (!library) {
		const char *text = dlerror();

		if (!strncmp(text, SONAME ": ", sizeof(SONAME ": ") - 1))
			text += sizeof(SONAME ": ") - 1;
		return nccl_fail(
			-ENOENT, ret_why, "cannot be opened: ", text,
			"install NCCL where the dynamic linker finds it, or use another engine");
	}
	r = load_functions(&n, library, ret_why);
	if (r == 0)
		r = check_version(&n, ret_why);
	if (r < 0) {
		(void)dlclose(library);
		return r;
	}
	*ret = n; /* the library stays open */
	return 0;
}

void nccl_explain(const struct nccl *n, nccl_comm c, nccl_result result, char ret_why[NCCL_WHY_SIZE])
{
	const char *text = n->error_string(result), *last = n->last_error(c);

	(void)snprintf(ret_why, NCCL_WHY_SIZE, "%.100s (%d)%s%.120s", text ? text : "NCCL error",
		       result, last && last[0] ? ": " : "", last ? last : "");
	/* Some of NCCL's texts end with a newline. */
	for (size_t i = strlen(ret_why); i > 0 && ret_why[i - 1] <= ' '; i--)
		ret_why[i - 1] = '\0';
}

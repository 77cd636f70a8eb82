/*
 * The engine Gloo, which is a shared object, as it needs C++ and Gloo: training on one node works without either
 */
#include "libclient/train/nodes/engine.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "libclient/train/plan/sentence.h"

/* torch exports the functions of a Gloo of its own, which may be visible to all objects. Sanitizers refuse this flag. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OWN_GLOO 0
#else
#define OWN_GLOO RTLD_DEEPBIND
#endif

static pthread_once_t gloo_once = PTHREAD_ONCE_INIT;
/* Written once. */
static const struct engine *gloo_engine;
static char gloo_why[512];

/* The object beside the one that this function is in, as the linker may not search that folder; else where it searches. */
static const char *gloo_path(char beside[PATH_MAX])
{
	Dl_info info;
	const char *slash = NULL;

	if (dladdr((const void *)gloo_path, &info) && info.dli_fname)
		slash = strrchr(info.dli_fname, '/');
	if (!slash ||
	    snprintf(beside, PATH_MAX, "%.*s/%s", (int)(slash - info.dli_fname), info.dli_fname,
		     ENGINE_GLOO_OBJECT) >= PATH_MAX ||
	    access(beside, F_OK) < 0)
		return ENGINE_GLOO_OBJECT;
	return beside;
}

static void gloo_load(void)
{
	char beside[PATH_MAX];
	void *object = dlopen(gloo_path(beside), RTLD_NOW | RTLD_LOCAL | OWN_GLOO);

	if (object)
		gloo_engine = dlsym(object, ENGINE_GLOO_SYMBOL);
	if (!gloo_engine)
		(void)snprintf(gloo_why, sizeof(gloo_why), "%s", dlerror());
}

int engine_gloo(const struct engine **ret)
{
	(void)pthread_once(&gloo_once, gloo_load);
	if (!gloo_engine)
		return train_fail(-EOPNOTSUPP,
				  "several nodes need %s, which cannot be loaded (%s); install "
				  "Debian's libgloo0, or build weightd again with its libgloo-dev",
				  ENGINE_GLOO_OBJECT, gloo_why);
	*ret = gloo_engine;
	return 0;
}

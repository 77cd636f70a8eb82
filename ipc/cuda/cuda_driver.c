#include "ipc/cuda/cuda_driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SONAME "libcuda.so.1"

static pthread_once_t once = PTHREAD_ONCE_INIT;

/* The result of opening it, written once. */
static struct {
	int r;
	pid_t owner; /* the process that opened it */
	char why[CUDA_WHY_SIZE];
	struct cuda_driver driver;
} opened;

static int cuda_driver_fail(int r, const char *why)
{
	(void)snprintf(opened.why, sizeof(opened.why), "%s", why);
	return r;
}

static int load_functions(void *library)
{
	struct cuda_driver *d = &opened.driver;
	char why[CUDA_WHY_SIZE];

	/* POSIX allows what ISO C does not: a function pointer from dlsym(). */
#define X(field, symbol, parameters)                                                               \
	*(void **)&d->field = dlsym(library, symbol);                                              \
	if (!d->field) {                                                                           \
		(void)snprintf(why, sizeof(why),                                                   \
			       SONAME " lacks " symbol ": the driver is too old, 470 is needed");  \
		return cuda_driver_fail(-ENOSYS, why);                                             \
	}
	CUDA_DRIVER_FUNCTIONS(X)
#undef X
	return 0;
}

static int open_driver(void)
{
	void *library = dlopen(SONAME, RTLD_NOW | RTLD_LOCAL);
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");
	char why[CUDA_WHY_SIZE], said[CUDA_WHY_SIZE];
	int n = 0, r;
	cu_result result;

	if (!library) {
		const char *text = dlerror();

		if (!strncmp(text, SONAME ": ", sizeof(SONAME ": ") - 1))
			text += sizeof(SONAME ": ") - 1;
		(void)snprintf(why, sizeof(why),
			       SONAME " cannot be opened: %s; it comes with NVIDIA's driver", text);
		return cuda_driver_fail(-ENODEV, why);
	}
	r = load_functions(library);
	if (r < 0)
		return r;
	result = opened.driver.init(0);
	if (result == CU_OK)
		result = opened.driver.device_count(&n);
	if (result == CU_OK && n == 0)
		result = CU_NO_DEVICE;
	if (result == CU_OK)
		return 0;
	cuda_driver_explain(&opened.driver, result, said);
	if (result != CU_NO_DEVICE)
		visible = NULL;
	(void)snprintf(why, sizeof(why), "the CUDA driver does not start: %.120s%s%.60s%s", said,
		       visible ? " (CUDA_VISIBLE_DEVICES is '" : "", visible ? visible : "",
		       visible ? "')" : "");
	return cuda_driver_fail(result == CU_NO_DEVICE ? -ENODEV : -EIO, why);
}

static void open_once(void)
{
	opened.owner = getpid();
	opened.r = open_driver();
}

int cuda_driver_open(const struct cuda_driver **ret, char ret_why[CUDA_WHY_SIZE])
{
	(void)pthread_once(&once, open_once);
	if (opened.r == 0 && opened.owner != getpid()) {
		(void)snprintf(ret_why, CUDA_WHY_SIZE,
			       "CUDA cannot be used in a process forked from one that uses it; "
			       "spawn it instead");
		return -ECHILD;
	}
	if (opened.r < 0)
		memcpy(ret_why, opened.why, CUDA_WHY_SIZE);
	else
		*ret = &opened.driver;
	return opened.r;
}

void cuda_driver_explain(const struct cuda_driver *d, cu_result result, char ret_why[CUDA_WHY_SIZE])
{
	const char *name = NULL, *text = NULL;

	if (d->error_name(result, &name) != CU_OK || !name)
		(void)snprintf(ret_why, CUDA_WHY_SIZE, "CUDA error %d", result);
	else if (d->error_string(result, &text) != CU_OK || !text)
		(void)snprintf(ret_why, CUDA_WHY_SIZE, "%s", name);
	else
		(void)snprintf(ret_why, CUDA_WHY_SIZE, "%s: %s", name, text);
}

int cuda_driver_errno(cu_result result)
{
	static const struct {
		cu_result result;
		int error;
	} known[] = {
		{CU_OK, 0},
		{CU_INVALID_VALUE, -EINVAL},
		{CU_OUT_OF_MEMORY, -ENOMEM},
		{CU_NO_DEVICE, -ENODEV},
		{CU_INVALID_DEVICE, -ENODEV},
		{CU_PEER_ACCESS_UNSUPPORTED, -EOPNOTSUPP},
		{CU_NOT_PERMITTED, -EPERM},
		{CU_NOT_SUPPORTED, -EOPNOTSUPP},
	};

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (known[i].result == result)
			return known[i].error;
	return -EIO;
}

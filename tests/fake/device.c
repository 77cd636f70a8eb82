#include "tests/fake/device.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "tests/fake/state.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Written once: what this process sees. */
static struct {
	int gpus[DEVICE_N_MAX];
	int n;
} seen;

static int n_gpus(void)
{
	unsigned long long n = state_number("FAKE_CUDA_DEVICES", 1);

	return n > DEVICE_N_MAX ? DEVICE_N_MAX : (int)n;
}

static bool is_mig(void)
{
	return state_number("FAKE_CUDA_MIG", 0) != 0;
}

void device_uuid(int gpu, uint8_t ret[DEVICE_UUID_SIZE])
{
	static const uint8_t first[DEVICE_UUID_SIZE] = {0xfa, 0x4e, 0x00, 0x00, 0x12, 0x34,
							0x45, 0x67, 0x89, 0xab, 0xcd, 0xef,
							0x00, 0x00, 0x00, 0x00};

	memcpy(ret, first, DEVICE_UUID_SIZE);
	ret[2] = (uint8_t)gpu; /* so that a short prefix distinguishes them */
	ret[3] = is_mig() ? 0x16 : 0;
	ret[15] = (uint8_t)gpu;
}

/* "GPU-fa4e0000-...": what CUDA_VISIBLE_DEVICES may hold the beginning of. */
static void format_uuid(int gpu, char ret[64])
{
	uint8_t u[DEVICE_UUID_SIZE];
	int n;

	device_uuid(gpu, u);
	n = snprintf(ret, 64, "%s-", is_mig() ? "MIG" : "GPU");
	for (size_t i = 0; i < DEVICE_UUID_SIZE; i++)
		n += snprintf(ret + n, 64 - (size_t)n, "%s%02x",
			      i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", u[i]);
}

/* GPUs in the order in which the driver numbers them. */
static int list_all(int ret[DEVICE_N_MAX])
{
	const char *order = getenv("FAKE_CUDA_ORDER"), *by = getenv("CUDA_DEVICE_ORDER");
	int n = 0;

	for (int i = 0; i < n_gpus(); i++)
		ret[n++] = i;
	if (!order || (by && !strcmp(by, "PCI_BUS_ID")))
		return n;
	n = 0;
	for (char *end; n < n_gpus() && *order; order = *end ? end + 1 : end)
		ret[n++] = (int)strtol(order, &end, 10) % n_gpus();
	return n;
}

/* The GPU that an entry of CUDA_VISIBLE_DEVICES means, or -1. */
static int find_visible(const char *entry, const int *all, int n_all)
{
	int found = -1;
	char *end;
	long ordinal = strtol(entry, &end, 10);

	if (end != entry && !*end && !is_mig())
		return ordinal >= 0 && ordinal < n_all ? all[ordinal] : -1;
	if (strncasecmp(entry, is_mig() ? "MIG-" : "GPU-", 4) != 0)
		return -1;
	for (int i = 0; i < n_all; i++) {
		char uuid[64];

		format_uuid(all[i], uuid);
		if (strncasecmp(entry, uuid, strlen(entry)) != 0)
			continue;
		if (found >= 0)
			return -1; /* the beginning of two */
		found = all[i];
	}
	return found;
}

static void see_named(const char *visible, const int *all, int n_all)
{
	char *copy = strdup(visible), *rest = copy, *entry;

	/* As the real driver does: what follows an entry that means nothing is not seen. */
	while (seen.n < DEVICE_N_MAX && (entry = strsep(&rest, ","))) {
		int gpu = find_visible(entry, all, n_all);

		if (gpu < 0)
			break;
		for (int i = 0; i < seen.n; i++)
			if (seen.gpus[i] == gpu) {
				seen.n = 0; /* one named twice: none is seen */
				free(copy);
				return;
			}
		seen.gpus[seen.n++] = gpu;
	}
	free(copy);
}

static void look(void)
{
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");
	int all[DEVICE_N_MAX];
	int n_all = list_all(all);

	if (visible) {
		see_named(visible, all, n_all);
	} else {
		memcpy(seen.gpus, all, sizeof(all));
		seen.n = n_all;
	}
	if (is_mig() && seen.n > 1)
		seen.n = 1; /* a process can use one part only */
}

int device_n(void)
{
	(void)pthread_once(&once, look);
	return seen.n;
}

bool device_is_valid(cu_device d)
{
	return d >= 0 && d < device_n();
}

int device_gpu(cu_device d)
{
	return seen.gpus[d];
}

cu_device device_of_gpu(int gpu)
{
	for (int i = 0; i < device_n(); i++)
		if (seen.gpus[i] == gpu)
			return i;
	return -1;
}

uint64_t device_memory(void)
{
	return state_number("FAKE_CUDA_MEMORY", 1u << 30);
}

static int changed_attribute(int attribute, int otherwise)
{
	const char *changes = getenv("FAKE_CUDA_ATTRIBUTES");

	while (changes && *changes) {
		char *end;
		long a = strtol(changes, &end, 10);
		long value = *end == '=' ? strtol(end + 1, &end, 10) : 0;

		if (a == attribute)
			return (int)value;
		changes = *end ? end + 1 : end;
	}
	return otherwise;
}

int device_attribute(int gpu, int attribute)
{
	static const struct {
		int attribute, value;
	} known[] = {
		{16, 4}, /* multiprocessors */
		{41, 1}, /* unified addressing */
		{DEVICE_ATTRIBUTE_CAPABILITY_MAJOR, 9},
		{DEVICE_ATTRIBUTE_CAPABILITY_MINOR, 0},
		{DEVICE_ATTRIBUTE_VMM, 1},
		{DEVICE_ATTRIBUTE_POSIX_FD, 1},
		{DEVICE_ATTRIBUTE_RDMA_WITH_VMM, 0},
		{DEVICE_ATTRIBUTE_FABRIC, 0},
	};
	int value = 0;

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (known[i].attribute == attribute)
			value = known[i].value;
	if (attribute == 33) /* the PCI bus; parts of a GPU share its own */
		value = is_mig() ? 0x10 : 0x10 + gpu;
	return changed_attribute(attribute, value);
}

bool device_reaches(int gpu, int peer)
{
	return gpu == peer || (!is_mig() && !state_number("FAKE_CUDA_NO_PEERS", 0));
}

CALL(cuDeviceGetCount, int *ret)
{
	CALL_ENTER(CALL_NEEDS_INIT);
	*ret = device_n();
	return CUDA_SUCCESS;
}

CALL(cuDeviceGet, cu_device *ret, int ordinal)
{
	CALL_ENTER(CALL_NEEDS_INIT);
	if (!device_is_valid(ordinal))
		return CUDA_ERROR_INVALID_DEVICE;
	*ret = ordinal;
	return CUDA_SUCCESS;
}

CALL(cuDeviceGetName, char *ret, int size, cu_device d)
{
	CALL_ENTER(CALL_NEEDS_INIT);
	if (!device_is_valid(d))
		return CUDA_ERROR_INVALID_DEVICE;
	(void)snprintf(ret, (size_t)size, "Fake GPU%s", is_mig() ? " MIG 1g.1gb" : "");
	return CUDA_SUCCESS;
}

CALL(cuDeviceGetUuid_v2, uint8_t ret[DEVICE_UUID_SIZE], cu_device d)
{
	CALL_ENTER(CALL_NEEDS_INIT);
	if (!device_is_valid(d))
		return CUDA_ERROR_INVALID_DEVICE;
	device_uuid(device_gpu(d), ret);
	return CUDA_SUCCESS;
}

CALL(cuDeviceTotalMem_v2, size_t *ret, cu_device d)
{
	CALL_ENTER(CALL_NEEDS_INIT);
	if (!device_is_valid(d))
		return CUDA_ERROR_INVALID_DEVICE;
	*ret = device_memory();
	return CUDA_SUCCESS;
}

CALL(cuDeviceGetAttribute, int *ret, int attribute, cu_device d)
{
	CALL_ENTER(CALL_NEEDS_INIT);
	if (!device_is_valid(d))
		return CUDA_ERROR_INVALID_DEVICE;
	if (attribute < 1 || attribute > 200)
		return CUDA_ERROR_INVALID_VALUE;
	*ret = device_attribute(device_gpu(d), attribute);
	return CUDA_SUCCESS;
}

CALL(cuDeviceCanAccessPeer, int *ret, cu_device d, cu_device peer)
{
	CALL_ENTER(CALL_NEEDS_INIT);
	if (!device_is_valid(d) || !device_is_valid(peer))
		return CUDA_ERROR_INVALID_DEVICE;
	*ret = d != peer && device_reaches(device_gpu(d), device_gpu(peer));
	return CUDA_SUCCESS;
}

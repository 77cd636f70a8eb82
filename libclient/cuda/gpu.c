#include "libclient/cuda/gpu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/numa.h"

#define NAME_SIZE 128

int gpu_driver(const struct cuda_driver **ret, struct sentence *s)
{
	char why[CUDA_WHY_SIZE];
	int r = cuda_driver_open(ret, why);

	return r < 0 ? sentence_set(s, r, "%s", why) : 0;
}

int gpu_error(const struct cuda_driver *d, cu_result result, const char *what, struct sentence *s)
{
	char said[CUDA_WHY_SIZE];

	cuda_driver_explain(d, result, said);
	return sentence_set(s, cuda_driver_errno(result), "%s: %s", what, said);
}

static int gpu_count(const struct cuda_driver *d, int *ret, struct sentence *s)
{
	cu_result result = d->device_count(ret);

	return result ? gpu_error(d, result, "the GPUs cannot be counted", s) : 0;
}

/* "this process sees 2 GPUs (CUDA_VISIBLE_DEVICES is 0,1)", after what is not among them. */
static int not_seen(const char *what, int n, struct sentence *s)
{
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");

	return sentence_set(s, -ENODEV, "%s: this process sees %d GPU%s%s%.100s%s", what, n,
			    n == 1 ? "" : "s", visible ? " (CUDA_VISIBLE_DEVICES is " : "",
			    visible ? visible : "", visible ? ")" : "");
}

int gpu_find(const struct cuda_driver *d, const uint8_t uuid[WIRE_UUID_SIZE], int *ret,
	     struct sentence *s)
{
	char wanted[WIRE_DEVICE_SIZE];
	char what[2 * WIRE_DEVICE_SIZE] = "it is on ";
	struct cu_uuid found;
	int n, r = gpu_count(d, &n, s);

	if (r < 0)
		return r;
	for (int i = 0; i < n; i++)
		if (d->device_uuid(&found, i) == CU_OK &&
		    !memcmp(found.bytes, uuid, sizeof(found.bytes))) {
			*ret = i;
			return 0;
		}
	device_format(uuid, false, wanted);
	return not_seen(strncat(what, wanted, WIRE_DEVICE_SIZE), n, s);
}

int gpu_number(const struct cuda_driver *d, const char *spelling, int *ret, struct sentence *s)
{
	struct device device;
	int n, r = device_parse(spelling, &device);

	if (r < 0 || !device.is_cuda)
		return sentence_set(s, -EINVAL, "'%.64s' is not a GPU; use cuda:0, for example",
				    spelling);
	if (device.ordinal < 0)
		return gpu_find(d, device.uuid, ret, s);
	r = gpu_count(d, &n, s);
	if (r < 0)
		return r;
	if (device.ordinal >= n)
		return not_seen("there is no such GPU", n, s);
	*ret = device.ordinal;
	return 0;
}

/* The driver distinguishes a partition from a GPU only by its name: "NVIDIA A100-SXM4-40GB MIG 1g.5gb". */
static bool is_partition(const struct cuda_driver *d, int number)
{
	char name[NAME_SIZE] = "";

	return d->device_name(name, sizeof(name), number) == CU_OK && strstr(name, " MIG ");
}

int gpu_name(const struct cuda_driver *d, int number, char ret[WIRE_DEVICE_SIZE], struct sentence *s)
{
	struct cu_uuid uuid;
	cu_result result;
	int n, r = gpu_count(d, &n, s);

	if (r < 0)
		return r;
	if (number >= n)
		return not_seen("there is no such GPU", n, s);
	result = d->device_uuid(&uuid, number);
	if (result)
		return gpu_error(d, result, "its UUID cannot be read", s);
	device_format(uuid.bytes, is_partition(d, number), ret);
	return 0;
}

int gpu_numa_node(const struct cuda_driver *d, cu_device device)
{
	int domain, bus, slot;
	char address[32];

	if (d->device_attribute(&domain, CU_ATTRIBUTE_PCI_DOMAIN, device) ||
	    d->device_attribute(&bus, CU_ATTRIBUTE_PCI_BUS, device) ||
	    d->device_attribute(&slot, CU_ATTRIBUTE_PCI_DEVICE, device))
		return -1;
	(void)snprintf(address, sizeof(address), "%04x:%02x:%02x.0", (unsigned)domain,
		       (unsigned)bus, (unsigned)slot);
	return numa_node_of_pci(address);
}

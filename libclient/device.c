#include "libclient/device.h"

#include <errno.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/device.h"
#include "libclient/cuda/gpu.h"
#include "weightd.h"

static_assert(WEIGHTD_DEVICE_MAX + 1 == WIRE_DEVICE_SIZE, "names of devices are ABI");

CLEANUP_POINTER(struct weightd_list, weightd_list_free);

static int device_tell(struct sentence *s, int r, const char *name, int number, const char *why)
{
	if (!name)
		return sentence_set(s, r, "cuda:%d: %s", number, why);
	return sentence_set(s, r, "'%s' on cuda:%d: %s", name, number, why);
}

/* Selects a GPU by its number in nvidia-smi. */
static int ask_server(struct weightd *w, const char *name, int number, char ret[WIRE_DEVICE_SIZE])
{
	cleanup(weightd_list_freep) struct weightd_list *list = NULL;
	const struct weightd_device_info *info, *found = NULL;
	const char *why = "weightd has no such GPU; weightctl devices lists those there are";
	size_t n = 0;
	int r = weightd_list_devices(w, false, &list);

	if (r < 0)
		return r;
	for (size_t i = 0; (info = weightd_list_device(list, i)); i++) {
		if (!strcmp(info->device, "cuda"))
			why = info->why;
		if (strncmp(info->device, "cuda:", 5) != 0 || info->index != (unsigned)number)
			continue;
		found = info;
		n++;
	}
	if (n > 1)
		why = "that GPU is partitioned, and each part has a name of its own; weightctl "
		      "devices lists them";
	if (n != 1)
		return device_tell(&w->sentence, -ENODEV, name, number, why);
	return codec_put_string(ret, WIRE_DEVICE_SIZE, found->device);
}

int device_translate(struct weightd *w, const char *name, char device[WIRE_DEVICE_SIZE])
{
	const struct cuda_driver *driver;
	struct sentence *s = &w->sentence;
	struct device d;
	int r;

	if (device_parse(device, &d) < 0 || !d.is_cuda)
		return 0;
	if (d.ordinal < 0) {
		device_format(d.uuid, d.is_mig, device);
		return 0;
	}
	if (gpu_driver(&driver, s) < 0)
		return ask_server(w, name, d.ordinal, device);
	r = gpu_name(driver, d.ordinal, device, s);
	return r < 0 ? device_tell(s, r, name, d.ordinal, s->text) : 0;
}

int weightd_device_name(struct weightd *w, const char *device, char ret[WEIGHTD_DEVICE_MAX + 1])
{
	char name[WIRE_DEVICE_SIZE];
	struct device d;
	int r;

	if (device_parse(device, &d) < 0 || codec_put_string(name, sizeof(name), device) < 0)
		return sentence_set(&w->sentence, -EINVAL,
				    "'%s' is not a device; use host, cuda:0 with the number of a "
				    "GPU, cuda:GPU-<uuid> or cuda:MIG-<uuid>",
				    device);
	r = device_translate(w, NULL, name);
	if (r < 0)
		return r;
	memcpy(ret, name, sizeof(name));
	return 0;
}

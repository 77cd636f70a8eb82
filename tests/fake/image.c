#include "tests/fake/image.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fake/device.h"
#include "tests/fake/state.h"

#define ELF_MAGIC "\177ELF"
#define FATBIN_MAGIC 0xba55ed50u
#define KIND_ELF 2 /* 1 is PTX */

/* As CUDA's program fatbinary writes it; the format is not documented. The images follow, each behind its header. */
struct fatbin {
	uint32_t magic;
	uint16_t version, header_size;
	uint64_t size; /* bytes behind the header */
};

struct fatbin_image {
	uint16_t kind, version;
	uint32_t header_size; /* with the name of the source */
	uint64_t size; /* bytes behind the header */
	uint32_t compressed_size, unused;
	uint16_t minor, major; /* version of the format */
	uint32_t capability; /* 90 */
};

static int capability_of(int gpu)
{
	return device_attribute(gpu, DEVICE_ATTRIBUTE_CAPABILITY_MAJOR) * 10 +
	       device_attribute(gpu, DEVICE_ATTRIBUTE_CAPABILITY_MINOR);
}

static cu_result keep(struct image *i, const void *bytes, size_t size)
{
	i->bytes = malloc(size);
	if (!i->bytes)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(i->bytes, bytes, size);
	i->size = size;
	return CUDA_SUCCESS;
}

/* ".target sm_90" has to be what the GPU can do, at most. */
static cu_result compile(struct image *i, const char *ptx, int gpu)
{
	const char *target = strstr(ptx, ".target sm_");

	if (!target || !strstr(ptx, ".version"))
		return CUDA_ERROR_INVALID_PTX;
	if (state_number("FAKE_CUDA_NO_JIT", 0))
		return CUDA_ERROR_JIT_COMPILER_NOT_FOUND;
	if (atoi(target + strlen(".target sm_")) > capability_of(gpu))
		return CUDA_ERROR_NO_BINARY_FOR_GPU;
	return keep(i, ptx, strlen(ptx));
}

static bool read_header(const char *at, size_t room, struct fatbin_image *ret)
{
	if (room < sizeof(*ret))
		return false;
	memcpy(ret, at, sizeof(*ret));
	return ret->header_size >= sizeof(*ret) && ret->header_size <= room &&
	       ret->size <= room - ret->header_size;
}

static bool is_for(const struct fatbin_image *image, int capability)
{
	const int made_for = (int)image->capability;

	return image->kind == KIND_ELF && made_for / 10 == capability / 10 && made_for <= capability;
}

/* The first that fits. PTX in it is passed over: nothing that is tested has any there. */
static cu_result choose(struct image *i, const char *data, int gpu)
{
	const int capability = capability_of(gpu);
	struct fatbin_image header;
	struct fatbin fatbin;
	const char *at, *end;

	memcpy(&fatbin, data, sizeof(fatbin));
	if (fatbin.version != 1 || fatbin.header_size < sizeof(fatbin))
		return CUDA_ERROR_INVALID_IMAGE;
	at = data + fatbin.header_size;
	end = at + fatbin.size;
	while (at < end) {
		if (!read_header(at, (size_t)(end - at), &header))
			return CUDA_ERROR_INVALID_IMAGE;
		if (is_for(&header, capability))
			return keep(i, at + header.header_size, header.size);
		at += header.header_size + header.size;
	}
	return CUDA_ERROR_NO_BINARY_FOR_GPU;
}

cu_result image_init(struct image *i, const void *data, int gpu)
{
	uint32_t magic;

	*i = (struct image){0};
	if (!strncmp(data, ELF_MAGIC, strlen(ELF_MAGIC)))
		return CUDA_SUCCESS;
	if (strnlen(data, sizeof(magic)) < sizeof(magic))
		return CUDA_ERROR_INVALID_IMAGE;
	memcpy(&magic, data, sizeof(magic));
	return magic == FATBIN_MAGIC ? choose(i, data, gpu) : compile(i, data, gpu);
}

void image_deinit(struct image *i)
{
	free(i->bytes);
	*i = (struct image){0};
}

bool image_has_name(const struct image *i, const char *name)
{
	return !i->bytes || memmem(i->bytes, i->size, name, strlen(name));
}

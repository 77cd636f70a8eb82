/*
 * GPUs
 *
 * Those that CUDA shows to this process, which is what CUDA_VISIBLE_DEVICES leaves of them. A GPU has its
 * context, which takes some hundred megabytes of it, from its first use to the end of the process.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/cuda/cuda_driver.h"
#include "ipc/wire.h"

#define GPUS_MAX 64 /* parts of GPUs count */

struct gpu {
	cu_device device;
	uint8_t uuid[WIRE_UUID_SIZE];
	bool is_mig;
	char name[WIRE_NAME_SIZE];
	cu_context context; /* NULL until gpu_enter() */
};

struct gpus {
	const struct cuda_driver *driver;
	unsigned n;
	struct gpu gpus[GPUS_MAX];
};

/* Opens the driver, once. 0 or a negative errno with a clause why. May take seconds. */
int gpus_open(struct gpus *g, char ret_why[CUDA_WHY_SIZE]);

/* NULL: there is none of that UUID. */
struct gpu *gpus_find(struct gpus *g, const uint8_t uuid[WIRE_UUID_SIZE]);

/* Makes its context the current one, until gpu_leave(). As gpus_open(). */
int gpu_enter(struct gpus *g, struct gpu *gpu, char ret_why[CUDA_WHY_SIZE]);
void gpu_leave(struct gpus *g);

/* The GPU must be entered. */
int gpu_memory(struct gpus *g, uint64_t *ret_free, uint64_t *ret_total, char ret_why[CUDA_WHY_SIZE]);

/* Describes a GPU. For one that cannot be used the record has the reason. */
void gpu_describe(struct gpus *g, struct gpu *gpu, struct wire_device_record *ret);

/* True when an attribute of the driver is set. */
bool gpu_has(const struct gpus *g, const struct gpu *gpu, int attribute);

/* Puts a failed result into words. Its errno. */
int gpu_explain(const struct gpus *g, const char *what, cu_result result,
		char ret_why[CUDA_WHY_SIZE]);

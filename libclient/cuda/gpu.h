/*
 * GPUs
 *
 * The GPUs that this process sees, by number and by UUID. With CUDA_VISIBLE_DEVICES and partitions of GPUs (MIG),
 * numbers differ between processes, and only the driver in a process can translate them.
 */
#pragma once

#include <stddef.h>

#include "ipc/cuda/cuda_driver.h"
#include "ipc/device.h"
#include "libclient/connection/sentence.h"

/* As cuda_driver_open(), its clause in `s`. */
int gpu_driver(const struct cuda_driver **ret, struct sentence *s);

/* Sets the clause "`what`: CUDA_ERROR_...: ..." and returns the errno for it. */
int gpu_error(const struct cuda_driver *d, cu_result result, const char *what, struct sentence *s);

/* The number of the GPU with that UUID in this process. -ENODEV: it sees none. */
int gpu_find(const struct cuda_driver *d, const uint8_t uuid[WIRE_UUID_SIZE], int *ret,
	     struct sentence *s);

/* The number of a GPU by any spelling. -ENODEV; -EINVAL: that is no GPU. */
int gpu_number(const struct cuda_driver *d, const char *spelling, int *ret, struct sentence *s);

/* The NUMA node next to the GPU, whose memory it copies from fastest; -1: none, or unknown. */
int gpu_numa_node(const struct cuda_driver *d, cu_device device);

/* The device with that number, as device_format() writes it. -ENODEV. */
int gpu_name(const struct cuda_driver *d, int number, char ret[WIRE_DEVICE_SIZE],
	     struct sentence *s);

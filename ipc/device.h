/*
 * Devices
 *
 * A buffer is on "host" or on a GPU. A GPU is named by its UUID, "cuda:GPU-<uuid>", and a MIG partition by its own,
 * "cuda:MIG-<uuid>". An ordinal, "cuda:0" or "cuda" for short, has a meaning only within one process
 * (CUDA_VISIBLE_DEVICES), and is not sent over the wire.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ipc/wire.h"

struct device {
	bool is_cuda; /* else "host" */
	int ordinal; /* -1: named by UUID */
	bool is_mig;
	uint8_t uuid[WIRE_UUID_SIZE]; /* zero where there is an ordinal */
};

/* Any spelling; letters of a UUID in either case. -EINVAL. */
int device_parse(const char *spelling, struct device *ret);

/* "cuda:GPU-8e2a4d5c-....", in lower case. */
void device_format(const uint8_t uuid[WIRE_UUID_SIZE], bool is_mig, char ret[WIRE_DEVICE_SIZE]);

/* True for "host" and for what device_format() writes: a name that means the same to everybody. */
bool device_is_canonical(const char *device);

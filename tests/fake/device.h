/*
 * Fake GPUs
 *
 * What the environment says there is, as one process sees it. A GPU is known by its number in the order of
 * PCI addresses (`gpu`); an ordinal is this process's own number for it.
 *
 * FAKE_CUDA_DEVICES   how many GPUs there are (1); with FAKE_CUDA_MIG, how many parts one GPU has
 * FAKE_CUDA_MEMORY    bytes of each (1G)
 * FAKE_CUDA_MIG       parts of a GPU: a process sees the first, unless it names another
 * FAKE_CUDA_ORDER     "1,0": how the driver numbers them unless CUDA_DEVICE_ORDER=PCI_BUS_ID
 * FAKE_CUDA_ATTRIBUTES "102=0,110=1": attributes that differ from what device.c says
 * FAKE_CUDA_CHANNEL   memory can be made for fabric handles; that the GPU can do them is attribute 128
 * FAKE_CUDA_NO_PEERS  no GPU reaches another's memory
 * CUDA_VISIBLE_DEVICES as for the real driver
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "tests/fake/call.h"

#define DEVICE_N_MAX 16
#define DEVICE_UUID_SIZE 16
#define DEVICE_GRANULARITY (2u << 20)

#define DEVICE_ATTRIBUTE_CAPABILITY_MAJOR 75
#define DEVICE_ATTRIBUTE_CAPABILITY_MINOR 76
#define DEVICE_ATTRIBUTE_VMM 102
#define DEVICE_ATTRIBUTE_POSIX_FD 103
#define DEVICE_ATTRIBUTE_RDMA_WITH_VMM 110
#define DEVICE_ATTRIBUTE_FABRIC 128

/* How many this process sees. */
int device_n(void);

bool device_is_valid(cu_device d);

/* The GPU behind an ordinal, which is valid. */
int device_gpu(cu_device d);

/* The ordinal of a GPU, or -1: this process does not see it. */
cu_device device_of_gpu(int gpu);

uint64_t device_memory(void);
void device_uuid(int gpu, uint8_t ret[DEVICE_UUID_SIZE]);
int device_attribute(int gpu, int attribute);
bool device_reaches(int gpu, int peer);

/*
 * The other ways to share tensors of a GPU, one handle for each: as weightd would have to be used
 * without flat buffers. One agent makes them, another one opens them and reports how long that
 * took.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "tests/gpu/gpu.h"

/* Each replies by itself. */
void handles_make_ipc(struct gpu *gpu, size_t n, uint64_t size, const char *path);
void handles_time_ipc(struct gpu *gpu, const char *path);

/* Listens on a socket at `path`; then sends the descriptors to the first client. */
void handles_make_vmm(struct gpu *gpu, size_t n, uint64_t size, const char *path);
void handles_serve_vmm(struct gpu *gpu);
void handles_time_vmm(struct gpu *gpu, size_t n, uint64_t size, const char *path);

/*
 * `ns`, a list: how long the driver takes to unmap an allocation of `size` and to map it again, n times. No swap and
 * no wake-up can be faster.
 */
void handles_time_remap(struct gpu *gpu, uint64_t size, size_t n);

/* The events of poll and epoll for a handle as a descriptor, while there is memory behind it. */
void handles_poll(struct gpu *gpu);

/*
 * Attacks that a process with the rights can make on weightd: takes a descriptor of memory from
 * process `pid`. Among those that can be imported, the one with `word` as its first word, in a buffer
 * of `data_size` bytes. tamper changes 4 bytes at an offset, though no process may write there;
 * steal keeps it, without a lease.
 */
void handles_tamper(struct gpu *gpu, int pid, uint32_t word, uint64_t offset, uint64_t data_size);
void handles_steal(struct gpu *gpu, int pid, uint32_t word, uint64_t data_size);

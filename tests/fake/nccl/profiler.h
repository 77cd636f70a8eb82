/*
 * A plug-in of the profiler, as NCCL 2.28 has one: NCCL_PROFILER_PLUGIN, here a path, and version 5
 * of its interface
 *
 * It receives communicators and their collectives, but not the traffic of a network. Each takes
 * NULL, and returns it where there is none.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

void *profiler_open(uint64_t hash, int rank, int n_ranks);
void *profiler_start(void *context, const char *func, size_t count, const char *datatype, int root);
void profiler_stop(void *handle);
void profiler_close(void *context);

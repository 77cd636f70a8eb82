/*
 * A plug-in of the profiler, as NCCL 2.28 has one: NCCL_PROFILER_PLUGIN, here a path, and version 5 of its interface
 *
 * It is told of communicators and their collectives, and not of what a network carries. Each takes NULL, and gives it
 * where there is none.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

void *profiler_open(uint64_t hash, int rank, int n_ranks);
void *profiler_start(void *context, const char *func, size_t count, const char *datatype, int root);
void profiler_stop(void *handle);
void profiler_close(void *context);

/*
 * The state of all fake GPUs
 *
 * A folder, FAKE_CUDA_STATE, that the processes of one test share: the script of failures, the
 * gate, a capture, and memory/, with one file per allocation. The environment describes the
 * machine.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* NULL: this machine has no GPU. */
const char *state_folder(void);

/* Holds up other processes and threads; does not nest. Where locking fails, there is no lock. */
void state_lock(void);
void state_unlock(void);

/* "DIR/name", or "" where there is no state. */
void state_path(const char *name, char *ret, size_t size);

/* A number in the environment, with K, M or G behind it for multiples of 1024. */
unsigned long long state_number(const char *variable, unsigned long long otherwise);

/*
 * Names of devices
 *
 * The server names a GPU by its UUID; people use the number that 'weightctl devices' and nvidia-smi show. Tables show
 * "cuda:0", JSON the UUID; --device accepts both. The numbers are the server's: CUDA_VISIBLE_DEVICES, which may
 * change them in each process, does not apply here, so that every number shown can be typed.
 */
#pragma once

#include "libclient/weightctl/cli.h"

/* The server's devices, asked for once; owned by `cli`. Needs a connection. 0, or a negative errno. */
int device_list(struct cli *cli, bool now, const struct weightd_list **ret);

/* "cuda:0" for "cuda:GPU-..."; `device` itself if it has no shorter name, or none is known. */
const char *device_short(struct cli *cli, const char *device);

/*
 * Replaces cli->device, possibly a number, by the server's name. Needs a connection. 0, or EXIT_FAILED after printing
 * why.
 */
int device_resolve(struct cli *cli);

/*
 * The server's name of a device, which points into `device`, whose letters it changes, or into the list of `cli`. Likewise.
 */
int device_name_of(struct cli *cli, char *device, const char **ret);

#define DEVICE_ALL "cuda:all" /* all GPUs of the server that can be used */
#define DEVICES_MAX 64

/* True for several devices, by commas, and for DEVICE_ALL. */
bool device_is_list(const char *device);

/*
 * The server's names of such devices, DEVICES_MAX at most; they point into `devices`, which is cut, or into the list of
 * `cli`. Needs a connection. 0, or EXIT_FAILED after printing why.
 */
int device_resolve_list(struct cli *cli, char *devices, const char **ret_names, size_t *ret_n);

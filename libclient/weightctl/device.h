/*
 * How devices are called
 *
 * The server knows a GPU by its UUID, a person by the number that 'weightctl devices' and nvidia-smi give it.
 * Tables show "cuda:0", JSON the UUID; --device takes both. The numbers are the server's: CUDA_VISIBLE_DEVICES,
 * which may give them another meaning in each process, has none here, so that what is shown can be typed.
 */
#pragma once

#include "libclient/weightctl/cli.h"

/* The server's devices, asked for once; owned by `cli`. Needs a connection. 0, or a negative errno. */
int device_list(struct cli *cli, bool now, const struct weightd_list **ret);

/* "cuda:0" of "cuda:GPU-..."; `device` itself where there is no shorter name, or none is known. */
const char *device_short(struct cli *cli, const char *device);

/*
 * Makes of cli->device, a number perhaps, the name that the server knows. Needs a connection. 0, or EXIT_FAILED after
 * telling why.
 */
int device_resolve(struct cli *cli);

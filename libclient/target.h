/*
 * The target of a request: name and device of a buffer
 */
#pragma once

#include "ipc/wire.h"
#include "libclient/connection/client.h"

/*
 * Copies buffer name and device (NULL: "host"; see device_translate()) into request fields; sets the sentence on
 * failure.
 */
int client_put_target(struct weightd *w, const char *name, const char *device,
		      char name_field[WIRE_NAME_SIZE], char device_field[WIRE_DEVICE_SIZE]);

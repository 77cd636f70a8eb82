/*
 * Devices
 *
 * How they are spelled here and there: a number of a GPU is this process's own, the server knows GPUs by UUID.
 */
#pragma once

#include "libclient/connection/client.h"

/*
 * Makes of a spelling the name that the server knows, in place. `name` is for the sentence, NULL: none. A number
 * is what this process's driver says; where it has none, the server's count, for those who only ask about a
 * buffer. What is no device at all is left for the server to refuse. -ENODEV: no such GPU.
 */
int device_translate(struct weightd *w, const char *name, char device[WIRE_DEVICE_SIZE]);

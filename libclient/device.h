/*
 * Devices
 *
 * Spellings of devices: a GPU has a number in this process, and a UUID in the server.
 */
#pragma once

#include "libclient/connection/client.h"

/*
 * Translates a spelling into the server's name, in place. `name` is for the sentence, NULL: none. A number is that of
 * this process's driver; without a driver, that of the server, for callers that only query a buffer. Spellings that
 * are no device are left for the server to refuse. -ENODEV: no such GPU.
 */
int device_translate(struct weightd *w, const char *name, char device[WIRE_DEVICE_SIZE]);

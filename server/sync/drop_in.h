/*
 * Drop-in of the unit
 *
 * The addresses that sync.conf names, as IPAddressAllow= of systemd.resource-control(5): the kernel then drops packets
 * from and to all others.
 */
#pragma once

#include "server/sync/config.h"

/* Prints it. Blocks while names of hosts are resolved. Negative: the reason was logged, and nothing was printed. */
int drop_in_print(const struct config *c);

/*
 * Queue pairs of RDMA devices, and the hardware counters that some of them are bound to, which the kernel shows any
 * process by netlink
 *
 * The collector changes nothing: binding queue pairs to counters by their process is a setting of the device for all
 * its users (`rdma statistic qp set link DEVICE auto pid on`).
 */
#pragma once

#include <jansson.h>

#include "bpf/base/support.h"

#define NLDEV_ROWS_MAX 4096 /* further rows are left out */

/*
 * Parses a packet of the kernel into objects with a "kind": "device", "qp" and "counter". 0: more follow; 1: it was
 * the last; -EBADMSG, or the error of the kernel.
 */
int nldev_parse(const void *packet, size_t size, json_t *rows);

/* A socket to the kernel, or negative errno. */
int nldev_open(void);
/*
 * Queue pairs and counters of all devices; a queue pair has the "counter" that it is bound to. `open` is nldev_open,
 * and is called for each question. 0, or negative errno and why.
 */
int nldev_read(int (*open)(void), json_t *rows, char ret_why[WHY_SIZE]);

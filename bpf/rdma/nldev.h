/*
 * Queue pairs of RDMA devices, and the hardware counters that some of them are bound to, as the kernel tells
 * anybody by netlink
 *
 * Nothing is set: whether queue pairs are bound to counters by their process is the device's for all who use it
 * (`rdma statistic qp set link DEVICE auto pid on`).
 */
#pragma once

#include <jansson.h>

#include "bpf/base/support.h"

#define NLDEV_ROWS_MAX 4096 /* what is more is left out */

/*
 * What a packet of the kernel says, each an object with its "kind": "device", "qp" and "counter". 0: more comes; 1:
 * it was the last; -EBADMSG, or what the kernel refused with.
 */
int nldev_parse(const void *packet, size_t size, json_t *rows);

/* A socket to the kernel, or negative errno. */
int nldev_open(void);
/*
 * Queue pairs and counters of all devices; a queue pair has the "counter" that it is bound to. `open` is nldev_open,
 * and is called for each question. 0, or negative errno and why.
 */
int nldev_read(int (*open)(void), json_t *rows, char ret_why[WHY_SIZE]);

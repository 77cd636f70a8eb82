/*
 * What weightd says by its own probes, told as acts: attach, detach, publish, flip, quiesce
 */
#pragma once

#include <stdint.h>

#include "bpf/request.h"

struct bpf_object;
struct usdt;

/* `ring_size` of its events in bytes. 0, or negative errno: it has no rights, or the kernel refuses. */
int usdt_open(struct tracer *t, uint32_t ring_size, struct usdt **ret);
void usdt_close(struct usdt *u);

/*
 * Listens to every weightd, now or later, that runs the program which is open as `fd`. How many probes it has, and a
 * descriptor that is the link; or negative errno and why.
 */
int usdt_attach(struct usdt *u, int fd, int *ret_link_fd, char ret_why[WHY_SIZE]);

/* Also where nothing is told, as there is no room for all of it. */
void usdt_count_missed(struct usdt *u);

/* Its program. */
const struct bpf_object *usdt_object(const struct usdt *u);

/* What is attached now, as far as it was seen; the kind is "attached". */
int usdt_op(struct request *q);

/*
 * Events that weightd reports by its own probes: attach, detach, publish, flip, quiesce
 */
#pragma once

#include "bpf/base/question.h"

struct bpf_object;
struct usdt;

/* 0, or negative errno: it has no rights, or the kernel refuses. */
int usdt_open(struct collector *c, struct usdt **ret);
void usdt_close(struct usdt *u);

/*
 * Listens to every weightd, now or later, that runs the program which is open as `fd`. How many probes it has, and a
 * descriptor that is the link; or negative errno and why.
 */
int usdt_attach(struct usdt *u, int fd, int *ret_link_fd, char ret_why[WHY_SIZE]);

/* Counts lost events also while none is emitted, as there is no room for any. */
void usdt_count_missed(struct usdt *u);

/* Its program. */
const struct bpf_object *usdt_object(const struct usdt *u);

/* Adds what is attached now, as far as it was seen; the kind is "attached". */
void usdt_answer(struct usdt *u, struct answer *a);

/*
 * Descriptors of memory that one process hands another, told as acts
 *
 * Without the rights, or where the kernel lets no program see its functions, there are none, and all else works.
 */
#pragma once

#include <stdint.h>

#include "bpf/event/fd_passing.bpf.h"
#include "bpf/request.h"

struct bpf_object;
struct fd_passing;

/* `ring_size` of its events in bytes. 0, or negative errno and why. */
int fd_passing_open(struct tracer *t, uint32_t ring_size, struct fd_passing **ret,
		    char ret_why[WHY_SIZE]);
void fd_passing_close(struct fd_passing *p);
/* What there was no room for is counted when something is told, and by this where nothing is. Takes NULL. */
void fd_passing_count_missed(struct fd_passing *p);
/* Tells of all that were received, which nobody has to wait for then. Takes NULL. */
void fd_passing_take(struct fd_passing *p);

/* Its programs. */
const struct bpf_object *fd_passing_object(const struct fd_passing *p);

/* Answers whether it works. */
void fd_passing_doctor(struct request *q);

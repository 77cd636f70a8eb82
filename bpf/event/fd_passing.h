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
struct passing;

/* `ring_size` of its events in bytes. 0, or negative errno and why. */
int passing_open(struct tracer *t, uint32_t ring_size, struct passing **ret, char ret_why[WHY_SIZE]);
void passing_close(struct passing *p);
/* What there was no room for is counted when something is told, and by this where nothing is. Takes NULL. */
void passing_count_missed(struct passing *p);
/* Tells of all that were received, which nobody has to wait for then. Takes NULL. */
void passing_take(struct passing *p);

/* Its programs. */
const struct bpf_object *passing_object(const struct passing *p);

/* Answers whether it works. */
void passing_doctor(struct request *q);

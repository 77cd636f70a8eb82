/*
 * Probes by <sys/sdt.h>: a nop each, and a note in the program with its address, its semaphore and
 * its arguments.
 *
 * The arguments are in the registers of a call in every build, a sanitized one too, so that a
 * tracer need not interpret the note. There are six: bpftrace takes no more. The caller reads their
 * values from memory, since a sanitizer may call functions of its own for that, which use registers
 * as they like.
 */
#include "server/buffers/probe.h"

#define _SDT_HAS_SEMAPHORES 1
#define STAP_SDT_ARG_CONSTRAINT r
#include <sys/sdt.h>

#include "ipc/base/num.h"
#include "server/buffers/buffer.h"
#include "server/buffers/lease.h"
#include "server/buffers/version.h"
#include "server/buffers/writer.h"
#include "server/memory/slot.h"
#include "server/state/session.h"

#if defined __x86_64__
#define REGISTER_0 "rdi"
#define REGISTER_1 "rsi"
#define REGISTER_2 "rdx"
#define REGISTER_3 "rcx"
#define REGISTER_4 "r8"
#define REGISTER_5 "r9"
#define PINNED(n) __asm__(REGISTER_##n)
#elif defined __aarch64__
#define PINNED(n) __asm__("x" #n)
#else
#define PINNED(n) /* the note has their place */
#endif

#define PIN(n) register uint64_t r##n PINNED(n) = a##n

/* In the file, not only in memory: there the kernel counts. */
#define SEMAPHORE(noun)                                                                            \
	volatile unsigned short weightd_##noun##_semaphore __attribute__((section(".probes")))
SEMAPHORE(attach);
SEMAPHORE(detach);
SEMAPHORE(publish);
SEMAPHORE(flip);
SEMAPHORE(quiesce);

/* A function for each. Its arguments are pinned to their registers. */
#define TELL(noun)                                                                                 \
	static __attribute__((noinline)) void tell_##noun(uint64_t a0, uint64_t a1, uint64_t a2,   \
							  uint64_t a3, uint64_t a4, uint64_t a5)   \
	{                                                                                          \
		PIN(0);                                                                            \
		PIN(1);                                                                            \
		PIN(2);                                                                            \
		PIN(3);                                                                            \
		PIN(4);                                                                            \
		PIN(5);                                                                            \
		STAP_PROBE6(weightd, noun, r0, r1, r2, r3, r4, r5);                                \
	}
TELL(attach)
TELL(detach)
TELL(publish)
TELL(quiesce)

/* With fewer. */
static __attribute__((noinline)) void tell_flip(uint64_t a0, uint64_t a1, uint64_t a2, uint64_t a3)
{
	PIN(0);
	PIN(1);
	PIN(2);
	PIN(3);
	STAP_PROBE4(weightd, flip, r0, r1, r2, r3);
}

static uint64_t actor_id(pid_t pid, uid_t uid)
{
	return (uint64_t)uid << 32 | (uint32_t)pid;
}

static uint64_t lease_actor(const struct lease *l)
{
	return actor_id(l->session->peer.pid, l->session->peer.uid);
}

void probe_attach(const struct lease *l)
{
	const struct version *v = l->version;

	tell_attach((uintptr_t)v->buffer->name, (uintptr_t)v->buffer->device, v->number, l->id,
		    lease_actor(l), v->slot->data_size);
}

void probe_detach(const struct lease *l)
{
	const struct version *v = l->version;

	tell_detach((uintptr_t)v->buffer->name, (uintptr_t)v->buffer->device, v->number, l->id,
		    lease_actor(l), num_now_ns() - l->began_ns);
}

void probe_publish(const struct version *v, uint64_t began_ns)
{
	tell_publish((uintptr_t)v->buffer->name, (uintptr_t)v->buffer->device, v->number,
		     actor_id(v->pid, v->uid), v->slot->data_size, num_now_ns() - began_ns);
}

void probe_flip(const struct buffer *b, uint64_t before)
{
	if (b->current != before)
		tell_flip((uintptr_t)b->name, (uintptr_t)b->device, before, b->current);
}

void probe_quiesce(const struct writer *w, enum probe_phase phase, unsigned n_readers)
{
	const struct buffer *b = w->buffer;

	tell_quiesce((uintptr_t)b->name, (uintptr_t)b->device, phase, actor_id(w->pid, w->uid),
		     n_readers, num_now_ns() - w->pause_began_ns);
}

/*
 * Probes
 *
 * USDT probes of the provider "weightd", where a tracer can see attaches and detaches, publishes
 * and flips, and how long a writer waited for readers. weightd(8) describes them; bpftrace, perf,
 * gdb and weightd-trace find them in the program. A probe without a tracer costs a load and a
 * branch that is not taken, and its arguments are not evaluated.
 */
#pragma once

#include <stdint.h>

struct buffer;
struct lease;
struct version;
struct writer;

enum probe_phase {
	PROBE_ASKED, /* readers are asked to make room */
	PROBE_GOES_ON, /* the writer continues: they have, or have not in time */
	PROBE_GAVE_UP,
};

/*
 * PROBE(attach, lease): probe_attach(lease) if a tracer is attached; else its arguments are not
 * evaluated.
 */
#define PROBE(noun, ...)                                                                           \
	do {                                                                                       \
		if (__builtin_expect(weightd_##noun##_semaphore, 0))                               \
			probe_##noun(__VA_ARGS__);                                                 \
	} while (0)

/* How many look. The kernel writes it, and finds it in the program's notes by a name that is not ours to choose. */
#define PROBE_SEMAPHORE(noun)                                                                      \
	extern volatile unsigned short weightd_##noun##_semaphore                                  \
		__attribute__((visibility("hidden")))
PROBE_SEMAPHORE(attach);
PROBE_SEMAPHORE(detach);
PROBE_SEMAPHORE(publish);
PROBE_SEMAPHORE(flip);
PROBE_SEMAPHORE(quiesce);

/* Only through PROBE(). */
void probe_attach(const struct lease *l);
void probe_detach(const struct lease *l);
/* The request to publish was received at `began_ns`. */
void probe_publish(const struct version *v, uint64_t began_ns);
/* The head page had `before`, and has another version now. */
void probe_flip(const struct buffer *b, uint64_t before);
/* `n_readers` have not made room. */
void probe_quiesce(const struct writer *w, enum probe_phase phase, unsigned n_readers);

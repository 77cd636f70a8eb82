/*
 * Sinks
 *
 * Destinations of a load's bytes: their final place, or, where no file can be read directly to it, memory in
 * between, from which they are copied to the GPU while the next ones are read. A kind of sink is a const table.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "libclient/connection/sentence.h"
#include "libclient/load/copies.h"
#include "libclient/load/progress.h"
#include "libclient/writer.h"

struct sink {
	const struct sink_kind *kind; /* NULL: not open */
	struct weightd_writer *wr;
	const struct copies *copies; /* further GPUs that receive the bytes */
	int node; /* NUMA node that the threads, and the memory between, had better be on; -1: any */
	struct progress *progress;
	const char *phase; /* of the progress, in which it is filled */
	void *state; /* the kind's own, NULL where it has none */
};

struct sink_kind {
	unsigned n_threads; /* at most, unless the caller sets it */
	unsigned n_leaves; /* leaves of a stretch; one thread reads, digests and hands over all of it */
	bool compares; /* leaves have digests already, which stay */
	bool is_used_again; /* memory for stretches is reused: the reader must zero bytes that belong to no tensor */

	/* Lowers `*n_threads` where there is no memory for as many; not to 0. */
	int (*open)(struct sink *k, unsigned *n_threads, struct sentence *s);

	/* Returns the memory for the stretch that begins at `leaf`, and waits until there is room. Called by thread `thread`. */
	int (*begin)(struct sink *k, unsigned thread, uint64_t leaf, char **ret, struct sentence *s);

	/* It is there, `size` bytes, its leaves are digested. */
	int (*end)(struct sink *k, unsigned thread, uint64_t leaf, uint64_t size,
		   struct sentence *s);

	/* All of it was handed over: waits until it has arrived, and checks that it did. */
	int (*finish)(struct sink *k, struct sentence *s);

	/* Whatever was begun and not ended, or ended and not finished. */
	void (*close)(struct sink *k);
};

extern const struct sink_kind sink_host, sink_cuda;
extern const struct sink_kind sink_compare; /* bytes that are read again, with those of any memory */

/* The kind that fills the memory of a writer. */
const struct sink_kind *sink_kind_of(const struct weightd_writer *wr);

/*
 * With all but `node` and `state`. Only the kind for GPUs takes `copies`. `*n_threads` threads may use it, as many as given or
 * fewer.
 */
int sink_open(struct sink *k, unsigned *n_threads, struct sentence *s);
void sink_close(struct sink *k);

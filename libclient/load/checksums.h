/*
 * Checksums
 *
 * The SHA-256 of each file of a load, made in the order of the file by threads beside those that read it. Bytes of tensors
 * that are as in the file are hashed where the version has them: on a GPU, once they have arrived. Headers, tensors that
 * are converted or left out, and what stands between tensors are hashed as the file has them.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "libclient/connection/sentence.h"
#include "libclient/libcrypto.h"
#include "libclient/load/folder/manifest.h"
#include "libclient/load/plan.h"
#include "libclient/load/progress.h"
#include "libclient/writer.h"

#define CHECKSUM_THREADS_MAX 8u

struct checksum {
	uint8_t expected[SHA256_SIZE];
	enum manifest_kind kind;
};

struct checksums {
	struct checksum *files; /* of the plan; NULL: nothing is checked */
	const struct libcrypto *lib;

	/* One fill of a writer. */
	const struct plan *plan;
	struct weightd_writer *wr;
	size_t *order; /* numbers of pieces, by file and offset */
	uint64_t n_bytes; /* of all files */
	pthread_t threads[CHECKSUM_THREADS_MAX];
	unsigned n_threads;
	_Atomic size_t next_file;
	_Atomic uint64_t n_done; /* bytes */

	pthread_mutex_t lock; /* protects the rest */
	pthread_cond_t arrived; /* bytes of the version, or none come any more */
	pthread_cond_t ended; /* a thread */
	bool has_all; /* every byte is in the version */
	bool is_stopped;
	unsigned n_running;
	int r; /* of the first file that is not as expected, or that failed */
	struct sentence sentence;
};

/* Finds what the files of the plan should have. Errors of manifest_find() and libcrypto_open(). */
int checksums_init(struct checksums *c, const struct plan *plan, struct sentence *s);
void checksums_deinit(struct checksums *c); /* a zeroed one is fine */

/*
 * Begins with the files of a plan, the one of checksums_init() or a placement of it, whose pieces are about to be read into
 * `wr`. Does nothing if nothing is checked, as the function below.
 */
int checksums_start(struct checksums *c, const struct plan *plan, struct weightd_writer *wr,
		    struct sentence *s);

/*
 * `has_all`: all pieces are in the version: waits for the sums, and reports progress. Otherwise the threads stop. All have
 * ended when it returns. -EBADMSG: a file is another than expected.
 */
int checksums_finish(struct checksums *c, bool has_all, struct progress *progress,
		     struct sentence *s);

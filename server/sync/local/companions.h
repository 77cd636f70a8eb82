/*
 * Companions
 *
 * The header of a version that is a file, and its files: one blob between nodes. The receiver's
 * version is then the same file, in the same model directory.
 */
#pragma once

#include "server/sync/local/task.h"

struct companions {
	int fd; /* sealed; -1: none */
	uint64_t size;
	uint64_t header_size; /* of these */
	uint8_t hash[MERKLE_HASH_SIZE];
};

#define COMPANIONS_NONE ((struct companions){.fd = -1})

/*
 * Those of the attached version, with the header that its descriptor begins with. `data_fd` -1: a
 * version without one.
 */
int companions_new(const struct task *e, const struct target *target, int data_fd,
		   struct companions *ret, struct fault *f);
void companions_clear(struct companions *c);

/* Adds them to the message of a source. */
void companions_describe(const struct companions *c, json_t *message);

/* Those that a sink receives. */
struct received_companions {
	bool is_known; /* else the new version keeps the files of the one before it */
	struct blob blob;
	uint64_t header_size;
};

/* Descriptors of the message that are for them: 0 or 1, the last. */
unsigned companions_n_fds(const struct json_packet *t);
int companions_take(const struct json_packet *t, struct received_companions *ret, struct fault *f);
void received_companions_deinit(struct received_companions *c);

/* Gives the files to the task's writer. */
int companions_set_files(const struct task *e, const struct received_companions *c, struct fault *f);

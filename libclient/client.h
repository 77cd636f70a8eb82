/*
 * The connection, as the rest of the library sees it
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "ipc/base/list.h"
#include "ipc/codec.h"
#include "libclient/sentence.h"

struct weightd {
	unsigned n_refs; /* the caller's, and one of each buffer and writer */
	int fd; /* -1: not connected */
	pid_t owner; /* the process that connected; a child may not use the connection */
	uint64_t serial;
	uint64_t instance; /* of the server, new at each of its starts */
	bool survives; /* it has said that it comes back when it dies */
	bool sends_layouts; /* it has said that it answers WIRE_LAYOUT */
	int restart_timeout_ms;
	char *path;
	bool is_closed; /* by the caller */
	struct list buffers; /* weightd_buffer::link */
	int n_leaving; /* of them, detached and still in use by a stream */
	struct list writers; /* weightd_writer::link */
	struct sentence sentence;
};

struct sentence *client_sentence(struct weightd *w);

/* A second connection to where `w` is connected. The sentence of a failure is on `w`. */
int client_twin(struct weightd *w, struct weightd **ret);

struct weightd *client_ref(struct weightd *w);
void client_unref(struct weightd *w);
static inline void client_unrefp(struct weightd **w)
{
	client_unref(*w);
}

/*
 * Copies a struct of options whose first member is its size, as the caller knows it: shorter than ours,
 * and the rest is zero; longer, and what we do not know must be. -EINVAL below `min`; -E2BIG.
 */
int client_copy_options(struct weightd *w, const void *options, size_t min, void *ret, size_t size);

/*
 * Copies buffer name and device (NULL: "host"; see device_translate()) into request fields; sets the sentence on
 * failure.
 */
int client_put_target(struct weightd *w, const char *name, const char *device,
		      char name_field[WIRE_NAME_SIZE], char device_field[WIRE_DEVICE_SIZE]);

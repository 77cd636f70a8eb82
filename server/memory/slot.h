/*
 * Slots
 *
 * The memory of one version: allocated empty, provided step by step, filled by one writer, sealed
 * unless its buffer has it otherwise, and from then on only read. Steps run on the worker; between
 * them a slot has one owner, a writer or a version. Freeing may take long and runs on the worker
 * too.
 *
 * Three descriptors lead to it. `probe_fd` is read-only, and only weightd and the store have it:
 * while any other is open, or a mapping made from one, the kernel refuses a lease on it. This shows
 * that the slot is in use.
 *
 * Slots of several buffers may share one memfd, sealed by then, as their writers have found it to hold the same bytes. Each has
 * descriptors of its own, and is charged as if the memory were its own; the kernel frees the memory with the last of them.
 *
 * A slot is flat or an image; see ipc/digest.h. An image has digests beside it, in the store under
 * its id.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/list.h"
#include "server/backend/backend.h"
#include "server/base/freeing.h"
#include "server/base/threads/worker.h"
#include "server/memory/digests.h"
#include "server/memory/gpu_free.h"
#include "server/state/quota.h"

struct buffer;
struct server;

struct slot {
	struct server *server;
	const struct backend *backend;
	uint64_t id;
	uint64_t data_offset; /* bytes in front of the data of an image; 0: the slot has the flat form */
	uint64_t data_size; /* the flat range */
	uint64_t size; /* with the header in front of it, or the digest leaves behind it */
	struct backend_memory memory; /* its descriptor is -1 once published */
	int reader_fd; /* the readers' descriptor; see slot_reader() */
	int probe_fd;
	struct source hangup; /* on probe_fd; see slot_watch() */
	uid_t uid; /* the user that is charged */
	uid_t store_uid; /* the buffer's */
	bool kept; /* in the store */
	bool provided; /* all of its memory was, by a job */
	bool sealed;
	struct digests digests; /* of an image */
	uint64_t inode; /* of its memfd; 0: not of one, or not yet */
	struct list sharing; /* ring of the slots with the same memfd, this one included */
	struct charge charge;
	struct charge descriptors;
	struct job free_job;
	struct freeing freeing;
	struct gpu_free gpu_free;
	const char *device; /* the buffer's, which outlives it */
	struct buffer *buffer; /* of its version or writer; NULL while it is being freed */
};

/* Calls from slots to what uses them; in struct server. */
struct slot_ops {
	void (*lost)(struct slot *s); /* its memory is lost; must call slot_unwatch() */
	void (*freed)(struct server *server); /* called when the memory of a closed slot is free */
	/* The bytes that all slots take on a device, those that are being freed included. */
	uint64_t (*bytes_on)(const struct server *server, const char *device);
};

/* The place of a slot. */
struct slot_place {
	struct server *server;
	const struct backend *backend;
	const char *device; /* outlives the slot */
	struct buffer *buffer; /* likewise, until slot_free() */
	uid_t store_uid; /* its user in the store */
	const struct numa_policy *numa; /* of host memory that is made; NULL: none */
};

/* The form of a slot. */
struct slot_form {
	uint64_t data_size;
	uint64_t data_offset; /* 0: flat */
};

/* Bytes of the slot; of all that is charged for it, in whole pages. */
uint64_t slot_form_size(const struct slot_form *form);
uint64_t slot_form_charge(const struct slot_form *form);
/* Descriptors of it in the store. */
unsigned slot_form_descriptors(const struct slot_form *form);

/* Allocates and charges `uid`. 0, QUOTA_EXCEEDED or a negative errno. */
int slot_new(const struct slot_place *place, uid_t uid, const struct slot_form *form,
	     struct slot **ret);

/*
 * A slot with the memory of `from`, sealed, and in the place of `old`, whose digests it takes a descriptor of. Charges `uid`
 * in any case: `old` is about to be freed. 0 or a negative errno.
 */
int slot_new_shared(const struct slot_place *place, uid_t uid, const struct slot *from,
		    const struct slot *old, struct slot **ret);

/* A slot as the manifest has it. */
struct slot_saved {
	uint64_t id;
	struct slot_form form;
	uint64_t huge_bytes;
	uint64_t map_size;
	const uint8_t *handle; /* WIRE_HANDLE_SIZE bytes */
	uid_t uid;
};

/*
 * Recovers memory from the store. Takes `probe_fd` on success; charges in any case. -EBADMSG when
 * it is not what it should be; -EOWNERDEAD when it died with the process that held it.
 */
int slot_recover(const struct slot_place *place, const struct slot_saved *saved, int probe_fd,
		 struct slot **ret);

/*
 * Gives a recovered image its digests from the store. Takes `fd` on success. -EBADMSG when they
 * are not what they should be: sealed, if it is published. An image can be served without.
 */
int slot_recover_digests(struct slot *s, int fd, bool is_published);

/* True for an image that has its digests. */
bool slot_has_digests(const struct slot *s);

/* Takes a slot that no job works on, or NULL. It leaves the store. */
void slot_free(struct slot *s);

/* Puts it into the store. */
void slot_keep(struct slot *s);

/* Takes it out of the store. */
void slot_forget(struct slot *s);

/* On a worker: closes all descriptors. */
void slot_close(struct slot *s);

/*
 * On the backend's worker: as backend::provide, but JOB_DONE as soon as the first `until` bytes have memory. The
 * last of them come with the descriptors that are open for reading, and with the digests.
 */
int slot_provide(struct slot *s, uint64_t until);

/* True once a job has provided all of it. */
bool slot_is_provided(const struct slot *s);

/* Makes sure of the writable descriptors, for a slot that is not sealed. */
int slot_open(struct slot *s);

/* Gives them up. */
void slot_shut(struct slot *s);

/*
 * On the worker: seals the slot and its digests and gives up the writable descriptors. As
 * backend::seal.
 */
int slot_seal(struct slot *s);

/* On the worker: likewise without the seal, for buffers that have it so. -ENODATA. */
int slot_finish(struct slot *s);

/* The descriptor for readers, opened again if it was given up. -EMFILE and the like. */
int slot_reader(struct slot *s);

/*
 * Returns, for a slot that weightd has not open for writing: 1 if another process has, 0 if none;
 * negative if the kernel does not show it.
 */
int slot_has_writer(const struct slot *s);

/* Calls slot_ops::lost when the memory is lost, until slot_unwatch(); does nothing for memory that cannot be. */
int slot_watch(struct slot *s);
void slot_unwatch(struct slot *s);

/* True when its memory is no more, whatever leads to it. */
bool slot_is_lost(const struct slot *s);

/*
 * True while another process has it open or mapped, or another slot has its memory. The slot may have more readers
 * afterwards.
 */
bool slot_is_held(struct slot *s);

/*
 * True while another process has it open or mapped. For a slot that gets no more readers. Where the
 * kernel cannot tell, the end of all leases counts as proof; it also does while another slot has the memory.
 */
bool slot_in_use(struct slot *s);

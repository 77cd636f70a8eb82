#include "server/memory/slot.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/device.h"
#include "ipc/digest.h"
#include "server/base/fault.h"
#include "server/memory/gpu_free.h"
#include "server/state/server.h"

#define PAGE 4096u

/* True when what the descriptor of mortal memory leads to is lost. */
static bool hangs_up(int fd)
{
	struct pollfd p = {.fd = fd};

	return poll(&p, 1, 0) > 0 && p.revents & POLLHUP;
}

/* Adds it to the slots that have the memory of `fd`. */
static int slot_join(struct slot *s, int fd)
{
	struct id_index *all = &s->server->host_memory;
	struct stat st;
	struct slot *other;
	size_t at;

	if (s->backend->memory != WIRE_MEMORY_HOST)
		return 0;
	if (fstat(fd, &st) < 0)
		return -errno;
	at = id_index_after(all, st.st_ino - 1);
	if (at < all->n && all->entries[at].id == st.st_ino) {
		other = all->entries[at].item;
		list_append(&other->sharing, &s->sharing);
	} else if (id_index_add(all, st.st_ino, s) < 0) {
		return -ENOMEM;
	}
	s->inode = st.st_ino;
	return 0;
}

/* True while another slot has the memory. */
static bool slot_is_shared(const struct slot *s)
{
	return !list_empty(&s->sharing);
}

static void slot_leave(struct slot *s)
{
	struct id_index *all = &s->server->host_memory;
	struct slot *other = slot_is_shared(s) ? container_of(s->sharing.next, struct slot, sharing)
					       : NULL;
	size_t at;

	if (!s->inode)
		return;
	at = id_index_after(all, s->inode - 1);
	if (!other)
		id_index_remove(all, s->inode);
	else if (all->entries[at].item == s)
		all->entries[at].item = other;
	list_remove(&s->sharing);
	s->inode = 0;
}

static void slot_destroy(struct slot *s)
{
	slot_leave(s);
	id_index_remove(&s->server->slots, s->id);
	slot_close(s);
	quota_refund(&s->charge);
	quota_refund(&s->descriptors);
	free(s);
}
CLEANUP_POINTER(struct slot, slot_destroy);

/* The place of its bytes, as far as the device shows it. -EINVAL: it is no device. */
static int slot_locate(struct slot *s)
{
	struct wire_location *location = &s->memory.location;
	struct device device;
	int r = device_parse(s->device, &device);

	if (r < 0)
		return r;
	location->memory = s->backend->memory;
	memcpy(location->uuid, device.uuid, sizeof(location->uuid));
	return 0;
}

uint64_t slot_form_size(const struct slot_form *form)
{
	return form->data_offset ? form->data_offset + form->data_size
				 : digest_slot_size(form->data_size);
}

static uint64_t digests_size(const struct slot_form *form)
{
	return form->data_offset ? digest_table_size(form->data_size) : 0;
}

static uint64_t in_pages(uint64_t size)
{
	return (size + PAGE - 1) & ~(uint64_t)(PAGE - 1);
}

uint64_t slot_form_charge(const struct slot_form *form)
{
	return in_pages(slot_form_size(form)) + in_pages(digests_size(form));
}

unsigned slot_form_descriptors(const struct slot_form *form)
{
	return form->data_offset ? 2 : 1;
}

static struct slot *slot_blank(const struct slot_place *place, uid_t uid,
			       const struct slot_form *form)
{
	struct slot *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->server = place->server;
	s->backend = place->backend;
	s->device = place->device;
	s->buffer = place->buffer;
	s->store_uid = place->store_uid;
	s->uid = uid;
	s->data_size = form->data_size;
	s->data_offset = form->data_offset;
	s->size = slot_form_size(form);
	digests_init(&s->digests);
	list_init(&s->sharing);
	s->memory.server = s->server;
	s->memory.size = s->size;
	s->memory.fd = -1;
	s->reader_fd = -1;
	s->probe_fd = -1;
	return s;
}

/* The two that cannot write, once there is memory to lead to. */
static int open_others(struct slot *s)
{
	int r = 0;

	if (s->memory.fd < 0 || s->probe_fd >= 0)
		return 0;
	r = s->backend->reader(s->memory.fd, &s->probe_fd);
	return r < 0 ? r : s->backend->reader(s->memory.fd, &s->reader_fd);
}

int slot_new(const struct slot_place *place, uid_t uid, const struct slot_form *form,
	     struct slot **ret)
{
	cleanup(slot_destroyp) struct slot *s = slot_blank(place, uid, form);
	struct server *server = place->server;
	int r;

	if (!s)
		return -ENOMEM;
	s->id = server_next_id(server);
	r = slot_locate(s);
	if (r == 0)
		r = quota_charge(&server->quota, uid, QUOTA_BYTES, slot_form_charge(form),
				 &s->charge);
	if (r == 0)
		r = quota_charge(&server->quota, uid, QUOTA_DESCRIPTORS,
				 slot_form_descriptors(form), &s->descriptors);
	if (r == 0)
		r = s->backend->allocate(&s->memory, place->numa);
	if (r == 0 && form->data_offset)
		r = digests_new(&s->digests, digests_size(form));
	if (r == 0)
		r = open_others(s);
	if (r == 0)
		r = slot_join(s, s->memory.fd);
	if (r == 0)
		r = id_index_add(&server->slots, s->id, s);
	if (r != 0)
		return r;
	server->n_slot_bytes += s->size;
	*ret = take_ptr(s);
	return 0;
}

static int share_digests(struct slot *s, const struct slot *old)
{
	if (old->digests.size == 0)
		return 0;
	s->digests.size = old->digests.size;
	return fd_reopen_readonly(old->digests.reader_fd, &s->digests.reader_fd);
}

int slot_new_shared(const struct slot_place *place, uid_t uid, const struct slot *from,
		    const struct slot *old, struct slot **ret)
{
	const struct slot_form form = {.data_size = old->data_size, .data_offset = old->data_offset};
	cleanup(slot_destroyp) struct slot *s = slot_blank(place, uid, &form);
	struct server *server = place->server;
	int r;

	if (!s)
		return -ENOMEM;
	s->id = server_next_id(server);
	s->memory.location = from->memory.location;
	s->memory.progress = from->memory.progress;
	s->provided = true;
	s->sealed = true;
	r = s->backend->reader(from->probe_fd, &s->probe_fd);
	if (r == 0)
		r = share_digests(s, old);
	if (r == 0)
		r = digests_open(&s->digests);
	if (r == 0)
		r = quota_charge_anyway(&server->quota, uid, QUOTA_BYTES, slot_form_charge(&form),
					&s->charge);
	if (r == 0)
		r = quota_charge_anyway(&server->quota, uid, QUOTA_DESCRIPTORS,
					slot_form_descriptors(&form), &s->descriptors);
	if (r == 0)
		r = slot_join(s, s->probe_fd);
	if (r == 0)
		r = id_index_add(&server->slots, s->id, s);
	if (r < 0)
		return r;
	*ret = take_ptr(s);
	return 0;
}

/* Checks what the descriptor shows, and finds how much of it has memory; for an opaque one the manifest is believed. */
static int slot_check_recovered(struct slot *s, int probe_fd)
{
	uint64_t size, *done = &s->memory.progress.done;
	int r;

	if (s->backend->mortal && hangs_up(probe_fd))
		return -EOWNERDEAD;
	if (s->backend->opaque) {
		*done = s->size;
		s->provided = true;
		return s->memory.location.map_size < s->size ? -EBADMSG : 0;
	}
	r = s->backend->describe(probe_fd, &size, done, &s->sealed);
	if (r < 0)
		return r;
	s->provided = *done == size;
	return size != s->size ? -EBADMSG : 0;
}

int slot_recover(const struct slot_place *place, const struct slot_saved *saved, int probe_fd,
		 struct slot **ret)
{
	cleanup(slot_destroyp) struct slot *s = slot_blank(place, saved->uid, &saved->form);
	struct server *server = place->server;
	int r;

	if (!s)
		return -ENOMEM;
	s->id = saved->id;
	s->kept = true;
	s->memory.location.map_size = saved->map_size;
	/* For other memory the manifest has the companions there. */
	if (s->backend->memory == WIRE_MEMORY_CUDA_IPC)
		memcpy(s->memory.location.handle, saved->handle, WIRE_HANDLE_SIZE);
	r = slot_locate(s);
	if (r == 0)
		r = slot_check_recovered(s, probe_fd);
	if (r == 0)
		r = quota_charge_anyway(&server->quota, s->uid, QUOTA_BYTES,
					slot_form_charge(&saved->form), &s->charge);
	if (r == 0)
		r = quota_charge_anyway(&server->quota, s->uid, QUOTA_DESCRIPTORS,
					slot_form_descriptors(&saved->form), &s->descriptors);
	if (r == 0)
		r = slot_join(s, probe_fd);
	if (r == 0)
		r = id_index_add(&server->slots, s->id, s);
	if (r < 0)
		return r;
	s->probe_fd = probe_fd;
	/* Those that were made since the writer was saved are not counted. */
	s->memory.progress.huge = saved->huge_bytes;
	if (!slot_is_shared(s))
		server->n_slot_bytes += s->size;
	*ret = take_ptr(s);
	return 0;
}

int slot_recover_digests(struct slot *s, int fd, bool is_published)
{
	struct slot_form form = {.data_size = s->data_size, .data_offset = s->data_offset};

	if (is_published && !fd_is_sealed(fd))
		return -EBADMSG;
	return digests_recover(&s->digests, digests_size(&form), fd);
}

bool slot_has_digests(const struct slot *s)
{
	return s->digests.size > 0;
}

void slot_close(struct slot *s)
{
	/* The last close frees the pages. */
	s->memory.fd = fd_close(s->memory.fd);
	s->reader_fd = fd_close(s->reader_fd);
	s->probe_fd = fd_close(s->probe_fd);
	digests_close(&s->digests);
}

static int slot_free_step(struct job *job)
{
	slot_close(container_of(job, struct slot, free_job));
	return JOB_DONE;
}

static void slot_end(struct slot *s)
{
	if (!slot_is_shared(s))
		s->server->n_slot_bytes -= s->size;
	slot_destroy(s);
}

static void slot_free_done(struct job *job, int r)
{
	struct slot *s = container_of(job, struct slot, free_job);
	struct server *server = s->server;

	(void)r; /* closing does not fail */
	freeing_end(&s->freeing);
	slot_end(s);
	freeings_wake(&server->freeings);
}

static void slot_on_hangup(struct source *source, uint32_t events)
{
	struct slot *s = container_of(source, struct slot, hangup);

	(void)events; /* nothing is ever written */
	s->server->slot_ops->lost(s);
}

int slot_watch(struct slot *s)
{
	return s->backend->mortal && !s->hangup.loop
		       ? loop_add(&s->server->loop, &s->hangup, s->probe_fd, 0, slot_on_hangup)
		       : 0;
}

void slot_unwatch(struct slot *s)
{
	loop_remove(&s->hangup);
}

void slot_forget(struct slot *s)
{
	slot_unwatch(s);
	if (s->kept)
		store_remove(&s->server->store, s->store_uid, STORE_SLOT, s->id);
	if (s->kept && slot_has_digests(s))
		store_remove(&s->server->store, s->store_uid, STORE_DIGESTS, s->id);
	s->kept = false;
}

void slot_free(struct slot *s)
{
	if (!s)
		return;
	s->buffer = NULL;
	slot_forget(s);
	if (s->probe_fd < 0) { /* released before, or there was nothing yet */
		slot_end(s); /* without a call to those that wait, whose versions the caller may be walking */
		return;
	}
	/* The last close may take as long as the allocation. */
	freeing_begin(&s->server->freeings, &s->freeing, s->uid, s->device);
	worker_submit(&s->server->freer, &s->free_job, s->uid, slot_free_step, slot_free_done);
}

void slot_keep(struct slot *s)
{
	if (s->kept)
		return;
	s->kept = true;
	(void)store_put(&s->server->store, s->store_uid, STORE_SLOT, s->id,
			s->probe_fd); /* the barrier after it reports errors */
	if (slot_has_digests(s))
		(void)store_put(&s->server->store, s->store_uid, STORE_DIGESTS, s->id,
				s->digests.reader_fd);
	(void)slot_watch(s); /* else an attach sees the loss */
}

static int provide_others(struct slot *s)
{
	int r = digests_provide(&s->digests);

	if (r == -ENOMEM)
		s->memory.progress.missing = s->digests.size;
	if (r == 0)
		r = open_others(s);
	s->provided = r == 0;
	return r;
}

int slot_provide(struct slot *s, uint64_t until)
{
	int r = s->backend->provide(&s->memory);

	if (r == JOB_AGAIN && s->memory.progress.done >= until)
		return JOB_DONE;
	return r == JOB_DONE ? provide_others(s) : r;
}

bool slot_is_provided(const struct slot *s)
{
	return s->provided;
}

int slot_open(struct slot *s)
{
	int r = s->memory.fd >= 0 ? 0 : s->backend->writable(s->probe_fd, &s->memory.fd);

	return r < 0 ? r : digests_open(&s->digests);
}

void slot_shut(struct slot *s)
{
	s->memory.fd = fd_close(s->memory.fd);
	digests_shut(&s->digests);
}

int slot_seal(struct slot *s)
{
	int r;

	if (s->memory.fd < 0)
		r = 0; /* sealed before, and then something else failed; or by another writer */
	else
		r = s->sealed ? s->backend->is_whole(s->memory.fd, s->size)
			      : s->backend->seal(s->memory.fd, s->size);
	if (r < 0)
		return r;
	s->sealed = true;
	fault_point("publish-digests");
	r = digests_seal(&s->digests);
	if (r == 0 && s->memory.fd >= 0 && s->backend->share)
		r = s->backend->share(s->memory.fd);
	if (r == 0)
		slot_shut(s);
	return r;
}

int slot_finish(struct slot *s)
{
	int r = s->memory.fd < 0 ? 0 : s->backend->is_whole(s->memory.fd, s->size);

	if (r == 0)
		slot_shut(s);
	return r;
}

int slot_reader(struct slot *s)
{
	int r = s->reader_fd >= 0 ? 0 : s->backend->reader(s->probe_fd, &s->reader_fd);

	return r < 0 ? r : s->reader_fd;
}

int slot_has_writer(const struct slot *s)
{
	return s->backend->has_writer(s->probe_fd);
}

bool slot_is_lost(const struct slot *s)
{
	return s->backend->mortal && hangs_up(s->probe_fd);
}

bool slot_is_held(struct slot *s)
{
	s->reader_fd = fd_close(s->reader_fd);
	return s->backend->in_use(s->probe_fd) > 0;
}

bool slot_in_use(struct slot *s)
{
	if (gpu_free_has_begun(&s->gpu_free))
		return false; /* its descriptors are the worker's */
	slot_shut(s);
	return !slot_is_shared(s) && slot_is_held(s);
}

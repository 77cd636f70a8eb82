/*
 * Listings: the server's records, copied into structs of this library's release.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "libclient/client.h"
#include "weightd.h"

struct weightd_list {
	size_t n;
	void *records; /* the server's; strings point into it */
	struct weightd_buffer_info *buffers; /* one of the two, n of them */
	struct weightd_version_info *versions;
};

void weightd_list_free(struct weightd_list *l)
{
	if (!l)
		return;
	free(l->records);
	free(l->buffers);
	free(l->versions);
	free(l);
}
CLEANUP_POINTER(struct weightd_list, weightd_list_free);

/* Appends the records of a reply to those there are. */
static int append(struct weightd_list *l, const struct wire_list_reply *reply, size_t record_size)
{
	char *records = reallocarray(l->records, l->n + reply->n_records + 1, record_size);

	if (!records)
		return -ENOMEM;
	memcpy(records + l->n * record_size, reply->records, reply->n_records * record_size);
	l->records = records;
	l->n += reply->n_records;
	return 0;
}

/* Asks page by page, and collects the records in `l`. */
static int fetch(struct weightd *w, enum wire_list_kind kind, const char *name, const char *device,
		 size_t record_size, struct weightd_list *l)
{
	uint64_t after = 0;

	do {
		struct client_call call = {
			.op = WIRE_LIST,
			.request.list = {.kind = kind, .after = after},
		};
		const struct wire_list_reply *reply = &call.reply.list;
		int r = 0;

		if (name)
			r = client_put_target(w, name, device, call.request.list.name,
					      call.request.list.device);
		if (r == 0)
			r = client_call(w, &call);
		if (r < 0)
			return r;
		if ((reply->n_records && reply->record_size != record_size) ||
		    (reply->next && reply->next <= after))
			r = -EBADMSG;
		else
			r = append(l, reply, record_size);
		if (r < 0)
			return sentence_set(&w->sentence, r, "weightd's list cannot be read: %s",
					    strerror(-r));
		after = reply->next;
	} while (after);
	return 0;
}

static void fill_buffer(const struct wire_buffer_record *rec, struct weightd_buffer_info *info)
{
	*info = (struct weightd_buffer_info){
		.size = sizeof(*info),
		.name = rec->name,
		.device = rec->device,
		.state = rec->version ? WEIGHTD_READY : WEIGHTD_EMPTY,
		.writing = rec->writing,
		.uid = rec->uid,
		.gid = rec->gid,
		.mode = rec->mode,
		.keep = rec->keep,
		.n_versions = rec->n_versions,
		.n_readers = rec->n_leases,
		.version = rec->version,
		.n_tensors = rec->n_tensors,
		.n_bytes = rec->data_size,
		.slot_bytes = rec->slot_bytes,
		.huge_bytes = rec->huge_bytes,
		.published_ns = rec->published_ns,
	};
	memcpy(info->layout_hash, rec->layout_hash, sizeof(info->layout_hash));
	memcpy(info->digest, rec->digest, sizeof(info->digest));
}

static void fill_version(const struct wire_version_record *rec, struct weightd_version_info *info)
{
	*info = (struct weightd_version_info){
		.size = sizeof(*info),
		.version = rec->version,
		.n_tensors = rec->n_tensors,
		.n_bytes = rec->data_size,
		.slot_bytes = rec->slot_bytes,
		.huge_bytes = rec->huge_bytes,
		.published_ns = rec->published_ns,
		.n_readers = rec->n_leases,
		.uid = rec->uid,
		.current = rec->current,
	};
	memcpy(info->layout_hash, rec->layout_hash, sizeof(info->layout_hash));
	memcpy(info->digest, rec->digest, sizeof(info->digest));
}

static int by_name_and_device(const void *a, const void *b)
{
	const struct wire_buffer_record *x = a, *y = b;
	int order = strcmp(x->name, y->name);

	return order ? order : strcmp(x->device, y->device);
}

int weightd_list(struct weightd *w, const char *name, struct weightd_list **ret)
{
	cleanup(weightd_list_freep) struct weightd_list *l = calloc(1, sizeof(*l));
	struct wire_buffer_record *records;
	int r;

	if (!l)
		return sentence_set(&w->sentence, -ENOMEM, "out of memory");
	r = fetch(w, WIRE_LIST_BUFFERS, name, NULL, sizeof(*records), l);
	if (r < 0)
		return r;
	records = l->records;
	l->buffers = calloc(l->n + 1, sizeof(*l->buffers));
	if (!l->buffers)
		return sentence_set(&w->sentence, -ENOMEM, "out of memory");
	for (size_t i = 0; i < l->n; i++) { /* for strings that the server did not end */
		records[i].name[sizeof(records[i].name) - 1] = '\0';
		records[i].device[sizeof(records[i].device) - 1] = '\0';
	}
	qsort(records, l->n, sizeof(*records), by_name_and_device);
	for (size_t i = 0; i < l->n; i++)
		fill_buffer(&records[i], &l->buffers[i]);
	*ret = take_ptr(l);
	return 0;
}

int weightd_list_versions(struct weightd *w, const char *name, const char *device,
			  struct weightd_list **ret)
{
	cleanup(weightd_list_freep) struct weightd_list *l = calloc(1, sizeof(*l));
	const struct wire_version_record *records;
	int r;

	if (!l)
		return sentence_set(&w->sentence, -ENOMEM, "out of memory");
	r = fetch(w, WIRE_LIST_VERSIONS, name, device, sizeof(*records), l);
	if (r < 0)
		return r;
	records = l->records;
	l->versions = calloc(l->n + 1, sizeof(*l->versions));
	if (!l->versions)
		return sentence_set(&w->sentence, -ENOMEM, "out of memory");
	for (size_t i = 0; i < l->n; i++)
		fill_version(&records[i], &l->versions[i]);
	*ret = take_ptr(l);
	return 0;
}

size_t weightd_list_count(const struct weightd_list *l)
{
	return l->n;
}

const struct weightd_buffer_info *weightd_list_buffer(const struct weightd_list *l, size_t i)
{
	return l->buffers && i < l->n ? &l->buffers[i] : NULL;
}

const struct weightd_version_info *weightd_list_version(const struct weightd_list *l, size_t i)
{
	return l->versions && i < l->n ? &l->versions[i] : NULL;
}

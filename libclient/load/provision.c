/*
 * A server without WIRE_PROVIDE replies to a create when all of its memory is there. Until then it lists the slot, and
 * how much of it has memory, for users that may read the buffer.
 */
#include "libclient/load/provision.h"

#include <errno.h>
#include <string.h>

#include "ipc/codec.h"
#include "libclient/connection/call.h"
#include "libclient/connection/connection.h"

void provision_init(struct provision *p, struct weightd *w, struct progress *progress,
		    const char *name, const char *device, uint64_t total)
{
	*p = (struct provision){.progress = progress, .name = name, .total = total};
	if (!progress->fn || w->provides || (device && strcmp(device, "host") != 0))
		return;
	if (connection_twin(w, &p->observer) < 0)
		p->observer = NULL; /* perhaps one too many; the load does without */
}

void provision_deinit(struct provision *p)
{
	client_unref(p->observer);
	p->observer = NULL;
}

static int provision_report(struct provision *p, uint64_t done)
{
	return progress_report(p->progress, "memory", done, p->total);
}

/* While the server is asked, which may have stopped. */
static int provision_on_tick(void *userdata)
{
	struct provision *p = userdata;

	return provision_report(p, p->done);
}

/* The memory of the slot that is being made, in a page of the list; unchanged where it has none. */
static uint64_t find_allocated(const struct wire_list_reply *list, uint64_t before)
{
	for (uint32_t i = 0; i < list->n_records; i++) {
		struct wire_slot_record rec;

		memcpy(&rec, list->records + i * sizeof(rec), sizeof(rec));
		if (rec.state == WIRE_SLOT_WRITING && !rec.version && !strcmp(rec.device, "host"))
			return rec.allocated;
	}
	return before;
}

static int provision_ask(struct provision *p)
{
	struct client_call call = {.op = WIRE_LIST, .tick = provision_on_tick, .userdata = p};
	struct wire_list *list = &call.request.list;
	int r;

	list->kind = WIRE_LIST_SLOTS;
	r = codec_put_string(list->name, sizeof(list->name), p->name);
	do {
		if (r == 0)
			r = client_ask(p->observer, &call);
		if (r < 0)
			return r;
		if (call.reply.list.record_size != sizeof(struct wire_slot_record))
			return -EBADMSG;
		p->done = find_allocated(&call.reply.list, p->done);
		list->after = call.reply.list.next;
	} while (list->after);
	return 0;
}

int provision_tick(void *userdata)
{
	struct provision *p = userdata;
	uint64_t most = p->total ? p->total - 1 : 0; /* the end is the answer to the create */

	if (p->observer && provision_ask(p) < 0)
		provision_deinit(p);
	if (p->done > most)
		p->done = most;
	return provision_report(p, p->done);
}

int provision_end(struct provision *p)
{
	return provision_report(p, p->total);
}

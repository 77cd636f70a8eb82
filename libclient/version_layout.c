/*
 * The server sends the descriptor of the memfd that it has for the version, which it has checked
 * and which is sealed: the image is mapped as it is.
 */
#include "libclient/version_layout.h"

#include <inttypes.h>
#include <string.h>

#include "ipc/base/fd.h"
#include "ipc/base/mapping.h"
#include "libclient/connection/call.h"
#include "libclient/target.h"

void version_layout_deinit(struct version_layout *l)
{
	mapping_free(l->image, l->size);
	*l = (struct version_layout){0};
}

static int version_layout_map(struct version_layout *l, int fd)
{
	int r = fd_size(fd, &l->size);

	if (r == 0)
		r = mapping_new_plain(fd, l->size, &l->image);
	if (r == 0)
		r = layout_open(l->image, l->size, &l->layout);
	return r;
}

int version_layout_init(struct version_layout *l, struct weightd *w, const char *name,
			const char *device, uint64_t version)
{
	struct client_call call = {.op = WIRE_LAYOUT, .request.layout.version = version};
	struct wire_layout *request = &call.request.layout;
	int r = client_put_target(w, name, device, request->name, request->device);

	if (r == 0)
		r = client_call_run(w, &call);
	if (r < 0)
		return r;
	l->version = call.reply.layout.version;
	l->flags = call.reply.layout.flags;
	l->data_offset = call.reply.layout.data_offset;
	r = version_layout_map(l, call.reply_fds[0]);
	client_call_deinit(&call);
	if (r < 0)
		return sentence_set(&w->sentence, r,
				    "the layout of '%s@%" PRIu64 "' on %s cannot be used: %s", name,
				    l->version, device, strerror(-r));
	return 0;
}

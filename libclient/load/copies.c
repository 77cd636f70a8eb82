#include "libclient/load/copies.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/device.h"
#include "libclient/connection/client.h"

CLEANUP_POINTER(struct weightd_layout, weightd_layout_free);

static int copies_check_device(struct weightd *w, const char *device)
{
	struct device d;

	if (device_parse(device, &d) == 0 && d.is_cuda)
		return 0;
	return sentence_set(client_sentence(w), -EINVAL,
			    "a load to several devices is one to GPUs, and '%.64s' is none; load it "
			    "there separately",
			    device);
}

int copies_check(struct weightd *w, const struct weightd_load_options *o)
{
	int r = 0;

	if (o->n_more_devices)
		r = copies_check_device(w, o->create && o->create->device ? o->create->device
									  : "host");
	for (size_t i = 0; r == 0 && i < o->n_more_devices; i++)
		r = copies_check_device(w, o->more_devices[i]);
	return r;
}

/*
 * The layout to ask with: that of the first writer, unless its tensors have bytes of their own where the given layout ties
 * them. Publish copies these, and needs the ties for it.
 */
static int copies_layout(const struct weightd_writer *first, struct weightd_layout **ret)
{
	*ret = NULL;
	if (first->adoption.tied)
		return 0;
	return weightd_layout_parse(first->image, first->image_size, ret);
}

static int copies_add(struct copies *c, const struct weightd_writer *first, const char *device,
		      const struct weightd_layout *layout, const struct weightd_load_options *o,
		      const struct writer_hooks *hooks)
{
	struct weightd_create_options create = {.size = sizeof(create)};
	struct weightd_writer *wr;
	struct weightd *w = first->w;
	int r = client_copy_options(w, o->create, offsetof(struct weightd_create_options, mode),
				    &create, sizeof(create));

	if (r < 0)
		return r;
	create.size = sizeof(create);
	create.device = device;
	r = writer_create(w, first->name, layout, &create, hooks, &wr);
	if (r < 0)
		return r;
	c->list[c->n++] = wr;
	if (!memcmp(wr->layout.header->hash, first->layout.header->hash, HASH_SIZE))
		return 0;
	return sentence_set(client_sentence(w), -EPROTOTYPE,
			    "'%s' on %s keeps another layout than on %s, and both cannot be loaded "
			    "at once; ask for a new layout (weightctl load --new-layout), or load "
			    "them separately",
			    first->name, wr->device, first->device);
}

int copies_create(struct copies *c, const struct weightd_writer *first,
		  const struct weightd_layout *layout, const struct weightd_load_options *o,
		  const struct writer_hooks *hooks)
{
	cleanup(weightd_layout_freep) struct weightd_layout *same = NULL;
	struct sentence *s = client_sentence(first->w);
	int r;

	*c = (struct copies){0};
	if (!o->n_more_devices)
		return 0;
	r = copies_layout(first, &same);
	if (r == 0)
		c->list = calloc(o->n_more_devices, sizeof(*c->list));
	if (!c->list)
		return sentence_set(s, r < 0 ? r : -ENOMEM, "the layout of '%s' cannot be copied",
				    first->name);
	for (size_t i = 0; r == 0 && i < o->n_more_devices; i++)
		r = copies_add(c, first, o->more_devices[i], same ? same : layout, o, hooks);
	if (r < 0)
		copies_deinit(c);
	return r;
}

void copies_deinit(struct copies *c)
{
	for (size_t i = 0; i < c->n; i++)
		weightd_writer_free(c->list[i]);
	free(c->list);
	*c = (struct copies){0};
}

int copies_send_companions(const struct copies *c, const struct companions *companions,
			   enum weightd_verify verified)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < c->n; i++)
		r = companions_send(companions, c->list[i], verified);
	return r;
}

/* "it is on cuda:GPU-..., @3, and ...". */
static int publish_failed(const struct copies *c, const struct weightd_writer *first, size_t failed,
			  int r, struct sentence *s)
{
	char there[SENTENCE_MAX / 2];
	int n = snprintf(there, sizeof(there), "%s (@%" PRIu64 ")", first->device, first->version);

	for (size_t i = 0; i < failed && n < (int)sizeof(there); i++)
		n += snprintf(there + n, sizeof(there) - (size_t)n, ", %s (@%" PRIu64 ")",
			      c->list[i]->device, c->list[i]->version);
	return sentence_set(s, r, "'%s' was published on %s, and not on %s: %.300s", first->name,
			    there, c->list[failed]->device, s->text);
}

int copies_publish(const struct copies *c, const struct weightd_writer *first,
		   uint64_t *ret_versions)
{
	for (size_t i = 0; i < c->n; i++) {
		uint64_t version;
		int r = weightd_writer_publish(c->list[i], &version);

		if (r < 0)
			return publish_failed(c, first, i, r, client_sentence(first->w));
		if (ret_versions)
			ret_versions[i] = version;
	}
	return 0;
}

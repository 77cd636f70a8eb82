/*
 * Copies
 *
 * Writers of one load on further GPUs. The bytes are read once, for the first writer, and each copy receives the same. All
 * are filled and checked before the first of them is published.
 */
#pragma once

#include <stddef.h>

#include "libclient/load/companions.h"
#include "libclient/writer.h"
#include "weightd.h"

struct copies {
	struct weightd_writer **list;
	size_t n;
};

/* -EINVAL: one of the devices of the load is no GPU, and there are several. */
int copies_check(struct weightd *w, const struct weightd_load_options *o);

/*
 * Asks for memory on the further devices of the options, for the layout of `first`, which was made for `layout`. `hooks` are
 * those of the first create. -EPROTOTYPE: a buffer there keeps another layout. A failure leaves none.
 */
int copies_create(struct copies *c, const struct weightd_writer *first,
		  const struct weightd_layout *layout, const struct weightd_load_options *o,
		  const struct writer_hooks *hooks);
void copies_deinit(struct copies *c);

int copies_send_companions(const struct copies *c, const struct companions *companions,
			   enum weightd_verify verified);

/* Publishes after `first`, in order. A failure names the devices that have been published, and the one that has not. */
int copies_publish(const struct copies *c, const struct weightd_writer *first,
		   uint64_t *ret_versions);

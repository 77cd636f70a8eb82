/*
 * Files and attributes of a load
 *
 * The small files of the directory that is loaded, and attributes that its configuration and its tensors show. They are
 * read before memory is requested, and become those of the version before it is published.
 */
#pragma once

#include <stddef.h>

#include "libclient/connection/client.h"
#include "libclient/load/plan.h"
#include "libclient/writer.h"
#include "weightd.h"

struct companions {
	struct weightd_files *files; /* NULL: the server keeps none */
	bool is_whole; /* else they are added to those of the newest version */
	size_t n_wanted; /* attributes of the caller, without which the load fails */
	bool sets_weights; /* the caller set the path of the weights */
	void (*note)(void *userdata, const char *note); /* the caller's; NULL: none */
	void *userdata;
};

/* `paths` are those of the plan. Errors have a sentence on `w`. */
int companions_init(struct companions *c, struct weightd *w, const struct plan *plan,
		    const char *const *paths, size_t n_paths, const struct weightd_load_options *o);
void companions_deinit(struct companions *c);

/* Makes them those of the version, which was verified so. Does nothing for memory that has none. */
int companions_send(const struct companions *c, struct weightd_writer *wr,
		    enum weightd_verify verified);

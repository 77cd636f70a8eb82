/*
 * Files beside the weights, of versions and writers on the server
 */
#pragma once

#include <stddef.h>

#include "libclient/connection/client.h"
#include "libclient/image/files.h"
#include "libclient/writer.h"

/*
 * Compares the attributes of a version with "key=value" texts. -EMEDIUMTYPE: one differs; -EINVAL: a text that is none;
 * and the errors of weightd_files_get() but -ENODATA of a version without files.
 */
int files_require(struct weightd *w, const char *name, const char *device, uint64_t version,
		  const char *const *require, size_t n_require);

/* -EOPNOTSUPP: the server is older than files. -ENOTCONN, -ECHILD. */
int files_check_server(struct weightd *w);

/*
 * Keeps the files of the newest version, which the writer begins with, for a create that replaces that version: it is gone
 * when they are asked for.
 */
void files_keep(struct weightd_writer *wr, const char *name, const char *device);

/* True if the server and the memory of `wr` can have files; else the sentence of `wr` has the reason. */
bool files_possible(struct weightd_writer *wr);

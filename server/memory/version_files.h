/*
 * Files of versions
 *
 * The small files beside the weights, in one sealed memfd that clients make and read; see WIRE_FILES.
 * A version without files of its own shares those of the version before it.
 */
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "server/memory/kept_memfd.h"

struct server;

struct version_files {
	struct kept_memfd memfd;
};

/* Takes `fd` on success. 0, QUOTA_EXCEEDED or a negative errno. */
int version_files_new(struct server *server, uid_t uid, int fd, struct version_files **ret);

/* Recovers those of the store. Charges in any case. */
int version_files_recover(struct server *server, uid_t uid, uint64_t id, int fd,
			  struct version_files **ret);

/* NULL is fine for all of these: there are none. */
struct version_files *version_files_ref(struct version_files *f);
void version_files_unref(struct version_files *f);
uint64_t version_files_id(const struct version_files *f);

#include "server/memory/version_files.h"

#include <errno.h>
#include <stdlib.h>

#include "ipc/base/cleanup.h"

int version_files_new(struct server *server, uid_t uid, int fd, struct version_files **ret)
{
	cleanup(freep) struct version_files *f = calloc(1, sizeof(*f));
	int r;

	if (!f)
		return -ENOMEM;
	f->memfd = (struct kept_memfd){.server = server, .kind = STORE_FILES, .fd = fd};
	r = kept_memfd_init(&f->memfd, uid);
	if (r == 0)
		*ret = take_ptr(f);
	return r;
}

int version_files_recover(struct server *server, uid_t uid, uint64_t id, int fd,
			  struct version_files **ret)
{
	cleanup(freep) struct version_files *f = calloc(1, sizeof(*f));
	int r;

	if (!f)
		return -ENOMEM;
	f->memfd = (struct kept_memfd){.server = server, .kind = STORE_FILES, .id = id, .fd = fd};
	r = kept_memfd_recover(&f->memfd, uid);
	if (r == 0)
		*ret = take_ptr(f);
	return r;
}

struct version_files *version_files_ref(struct version_files *f)
{
	if (f)
		f->memfd.n_refs++;
	return f;
}

void version_files_unref(struct version_files *f)
{
	if (f && kept_memfd_unref(&f->memfd))
		free(f);
}

uint64_t version_files_id(const struct version_files *f)
{
	return f ? f->memfd.id : 0;
}

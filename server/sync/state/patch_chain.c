/*
 * A chain of patches is only worth its memory while it is shorter than the bytes that it saves:
 * hence both limits.
 */
#include "server/sync/state/patch_chain.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "ipc/base/fd.h"

#define SHARE 4 /* all together take at most this fraction of the version */

/* Drops the oldest `n`. */
static void patch_chain_drop(struct patch_chain *p, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		(void)fd_close(p->at[i].fd);
	p->n -= n;
	memmove(p->at, p->at + n, p->n * sizeof(p->at[0]));
}

void patch_chain_deinit(struct patch_chain *p)
{
	patch_chain_drop(p, p->n);
}

void patch_chain_keep_to(struct patch_chain *p, const uint8_t root[32])
{
	if (memcmp(p->result, root, sizeof(p->result)) != 0)
		patch_chain_drop(p, p->n);
}

void patch_chain_add(struct patch_chain *p, struct kept_patch *patch, const uint8_t result[32],
		     uint64_t n_bytes)
{
	patch_chain_keep_to(p, patch->base);
	if (p->n == PATCH_CHAIN_MAX)
		patch_chain_drop(p, 1);
	p->at[p->n++] = *patch;
	patch->fd = -1;
	memcpy(p->result, result, sizeof(p->result));
	while (p->n > 1 && patch_chain_size(p, 0) > n_bytes / SHARE)
		patch_chain_drop(p, 1);
}

int patch_chain_copy(const struct patch_chain *from, struct patch_chain *ret)
{
	struct patch_chain copy = *from;

	for (copy.n = 0; copy.n < from->n; copy.n++) {
		int fd = fcntl(from->at[copy.n].fd, F_DUPFD_CLOEXEC, 3), r = -errno;

		if (fd < 0) {
			patch_chain_deinit(&copy);
			return r;
		}
		copy.at[copy.n].fd = fd;
	}
	*ret = copy;
	return 0;
}

unsigned patch_chain_find(const struct patch_chain *p, const uint8_t root[32])
{
	unsigned i = 0;

	while (i < p->n && memcmp(p->at[i].base, root, sizeof(p->at[i].base)) != 0)
		i++;
	return i;
}

uint64_t patch_chain_size(const struct patch_chain *p, unsigned first)
{
	uint64_t size = 0;

	for (unsigned i = first; i < p->n; i++)
		size += p->at[i].size;
	return size;
}

const char *patch_chain_way(bool is_patch, uint64_t changed, uint64_t n_bytes)
{
	if (changed == UINT64_MAX)
		return NULL;
	return is_patch ? "patch" : changed < n_bytes ? "leaves" : "full";
}

#include "server/sync/net/blob.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"

void blob_init(struct blob *b)
{
	*b = (struct blob){.fd = -1};
}

void blob_drop(struct blob *b)
{
	b->fd = fd_close(b->fd);
	EVP_MD_CTX_free(take_ptr(b->digest));
}

void blob_deinit(struct blob *b)
{
	blob_drop(b);
	blob_init(b);
}

int blob_begin(struct blob *b, const struct frame *part, bool keep)
{
	int r = 0;

	blob_init(b);
	if (part->offset != 0)
		return -EBADMSG;
	if (keep) {
		r = fd_memfd("weightd-sync-blob", part->blob_size, &b->fd);
		b->digest = r < 0 ? NULL : EVP_MD_CTX_new();
		if (r == 0 && (!b->digest || EVP_DigestInit_ex(b->digest, EVP_sha256(), NULL) != 1))
			r = -ENOMEM;
	}
	if (r < 0) {
		blob_deinit(b);
		return r;
	}
	memcpy(b->hash, part->hash, sizeof(b->hash));
	b->size = part->blob_size;
	return 0;
}

static int write_all(int fd, const uint8_t *data, size_t size, uint64_t offset)
{
	while (size > 0) {
		ssize_t n = pwrite(fd, data, size, (off_t)offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		data += n;
		size -= (size_t)n;
		offset += (uint64_t)n;
	}
	return 0;
}

int blob_take(struct blob *b, const struct frame *part)
{
	uint8_t hash[EVP_MAX_MD_SIZE];
	int r;

	if (memcmp(part->hash, b->hash, sizeof(b->hash)) != 0 || part->blob_size != b->size ||
	    part->offset != b->n)
		return -EBADMSG;
	if (b->fd < 0) {
		b->n += part->size;
		return b->n == b->size;
	}
	r = write_all(b->fd, part->data, part->size, b->n);
	if (r < 0)
		return r;
	if (EVP_DigestUpdate(b->digest, part->data, part->size) != 1)
		return -ENOMEM;
	b->n += part->size;
	if (b->n < b->size)
		return 0;
	if (EVP_DigestFinal_ex(b->digest, hash, NULL) != 1)
		return -ENOMEM;
	if (memcmp(hash, b->hash, sizeof(b->hash)) != 0)
		return -EILSEQ;
	if (fcntl(b->fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) < 0)
		return -errno;
	return 1;
}

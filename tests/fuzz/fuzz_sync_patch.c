/*
 * Parses any bytes as a patch: an accepted one is applied within its version, twice with the same
 * result, and composes with itself to itself.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ipc/base/num.h"
#include "server/sync/base/patch.h"
#include "tests/fuzz/fuzz.h"

#define N_BYTES_MAX (2 * MIB) /* the largest version that is allocated here */

static int apply(const struct patch *p, uint8_t *to)
{
	int r = 0;

	for (uint64_t i = 0; r == 0 && i < merkle_n_leaves(p->n_bytes); i++)
		r = patch_apply(p, i, to + i * MERKLE_LEAF_SIZE);
	return r;
}

static void expect_equal(const struct patch *p, const uint8_t *made)
{
	uint8_t *again = calloc(1, p->n_bytes + 1);
	struct patch_draft d;
	struct patch one;
	void *map;
	int fd;

	MUST(again);
	MUST(patch_draft_union((struct patch[]){*p, *p}, 2, &d) == 0);
	MUST(patch_draft_write(&d, p->base, p->result, &fd) == 0);
	map = mmap(NULL, d.size, PROT_READ, MAP_SHARED, fd, 0);
	MUST(map != MAP_FAILED);
	MUST(patch_open(map, d.size, &one) == 0);
	MUST(apply(&one, again) == 0 && memcmp(again, made, p->n_bytes) == 0);
	patch_close(&one);
	(void)munmap(map, d.size);
	(void)close(fd);
	patch_draft_deinit(&d);
	free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct patch p;
	uint8_t *made;

	if (patch_open(data, size, &p) < 0)
		return 0;
	MUST(p.n_blocks <= size / 16);
	made = p.n_bytes <= N_BYTES_MAX ? calloc(1, p.n_bytes + 1) : NULL;
	if (made && apply(&p, made) == 0) {
		MUST(apply(&p, made) == 0);
		expect_equal(&p, made);
	}
	free(made);
	patch_close(&p);
	return 0;
}

#include "libclient/image/names.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/hash.h"

#define SLOTS_MIN 64

void names_deinit(struct names *n)
{
	free(n->slots);
	*n = (struct names){0};
}

/* The slot of the name, or the empty one where it would go. */
static struct name *slot_of(const struct names *n, const char *name, size_t size)
{
	size_t i = hash64(name, size) & (n->n_slots - 1);

	while (n->slots[i].p && (n->slots[i].size != size || memcmp(n->slots[i].p, name, size)))
		i = (i + 1) & (n->n_slots - 1);
	return &n->slots[i];
}

static int names_grow(struct names *n)
{
	struct names larger = {.n_slots = n->n_slots ? 2 * n->n_slots : SLOTS_MIN, .n = n->n};

	larger.slots = calloc(larger.n_slots, sizeof(*larger.slots));
	if (!larger.slots)
		return -ENOMEM;
	for (size_t i = 0; i < n->n_slots; i++)
		if (n->slots[i].p)
			*slot_of(&larger, n->slots[i].p, n->slots[i].size) = n->slots[i];
	free(n->slots);
	*n = larger;
	return 0;
}

int names_add(struct names *n, const char *name, size_t size, uint32_t value)
{
	struct name *slot;
	int r;

	if (size > UINT32_MAX)
		return -EINVAL;
	if (2 * (n->n + 1) > n->n_slots) {
		r = names_grow(n);
		if (r < 0)
			return r;
	}
	slot = slot_of(n, name, size);
	if (slot->p)
		return -EEXIST;
	*slot = (struct name){.p = name, .size = (uint32_t)size, .value = value};
	n->n++;
	return 0;
}

bool names_find(const struct names *n, const char *name, size_t size, uint32_t *ret_value)
{
	const struct name *slot;

	if (n->n == 0)
		return false;
	slot = slot_of(n, name, size);
	if (!slot->p)
		return false;
	*ret_value = slot->value;
	return true;
}

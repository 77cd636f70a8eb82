#include "libclient/image/names.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/hash.h"
#include "libclient/image/array.h"

#define SLOTS_MIN 64
#define NAMES_MAX (1u << 30) /* their slots have numbers of 32 bits */

void names_deinit(struct names *n)
{
	free(n->list);
	free(n->slots);
	*n = (struct names){0};
}

static uint32_t hash_of(const char *name, size_t size)
{
	return (uint32_t)hash64(name, size);
}

/* The slot of the name, or the empty one where it would go. */
static struct name_slot *slot_of(const struct names *n, const char *name, size_t size, uint32_t hash)
{
	size_t i = hash & (n->n_slots - 1);

	for (; n->slots[i].number; i = (i + 1) & (n->n_slots - 1)) {
		const struct name *other = &n->list[n->slots[i].number - 1];

		if (n->slots[i].hash == hash && other->size == size && !memcmp(other->p, name, size))
			break;
	}
	return &n->slots[i];
}

static int names_grow(struct names *n)
{
	size_t n_slots = n->n_slots ? 2 * n->n_slots : SLOTS_MIN;
	struct name_slot *slots = calloc(n_slots, sizeof(*slots));

	if (!slots)
		return -ENOMEM;
	for (size_t i = 0; i < n->n_slots; i++)
		if (n->slots[i].number) {
			size_t at = n->slots[i].hash & (n_slots - 1);

			while (slots[at].number)
				at = (at + 1) & (n_slots - 1);
			slots[at] = n->slots[i];
		}
	free(n->slots);
	n->slots = slots;
	n->n_slots = n_slots;
	return 0;
}

int names_add(struct names *n, const char *name, size_t size, uint32_t value)
{
	uint32_t hash = hash_of(name, size);
	struct name_slot *slot;
	int r;

	if (size > UINT32_MAX || n->n == NAMES_MAX)
		return -EINVAL;
	if (2 * (n->n + 1) > n->n_slots) {
		r = names_grow(n);
		if (r < 0)
			return r;
	}
	slot = slot_of(n, name, size, hash);
	if (slot->number)
		return -EEXIST;
	if (!array_reserve(n->list, n->n, n->max))
		return -ENOMEM;
	n->list[n->n++] = (struct name){.p = name, .size = (uint32_t)size, .value = value};
	*slot = (struct name_slot){.hash = hash, .number = (uint32_t)n->n};
	return 0;
}

void names_expect(const struct names *n, const char *name, size_t size)
{
	if (n->n_slots)
		__builtin_prefetch(&n->slots[hash_of(name, size) & (n->n_slots - 1)], 1);
}

bool names_find(const struct names *n, const char *name, size_t size, uint32_t *ret_value)
{
	const struct name_slot *slot;

	if (n->n == 0)
		return false;
	slot = slot_of(n, name, size, hash_of(name, size));
	if (!slot->number)
		return false;
	*ret_value = n->list[slot->number - 1].value;
	return true;
}

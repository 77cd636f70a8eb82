/*
 * Names
 *
 * A hash table from a name to a small number. The names belong to the caller and stay where they are.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct name {
	const char *p;
	uint32_t size;
	uint32_t value;
};

/* Part of the hash stands here, so that a table grows, and other names are passed, without a look at the texts. */
struct name_slot {
	uint32_t hash;
	uint32_t number; /* of the name, from 1; 0: the slot is empty */
};

struct names {
	struct name *list; /* in the order in which they were added */
	size_t n, max;
	struct name_slot *slots;
	size_t n_slots; /* 0 or a power of two, at least twice n */
};

void names_deinit(struct names *n);

/* 0; -EEXIST: the name is there already; -EINVAL: it is too long, or one too many; -ENOMEM. */
int names_add(struct names *n, const char *name, size_t size, uint32_t value);

/* Fetches what names_add() of this name will look at, while the caller does something else. */
void names_expect(const struct names *n, const char *name, size_t size);

bool names_find(const struct names *n, const char *name, size_t size, uint32_t *ret_value);

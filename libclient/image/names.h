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

struct names {
	struct name *slots; /* p is NULL in an empty one */
	size_t n_slots; /* 0 or a power of two, at least twice n */
	size_t n;
};

void names_deinit(struct names *n);

/* 0; -EEXIST: the name is there already; -ENOMEM. */
int names_add(struct names *n, const char *name, size_t size, uint32_t value);

bool names_find(const struct names *n, const char *name, size_t size, uint32_t *ret_value);

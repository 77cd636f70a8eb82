/*
 * The descriptor store of the keeper
 *
 * Open descriptors that outlive the process which handed them in, each under a name. The list is dense:
 * entry i is the descriptor `first_fd` + i, so that a child finds all of them from there on and nothing has
 * to be moved between fork and exec. Names may repeat, and the order changes with every removal.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define FDSTORE_NAME_MAX 20

struct fdstore_entry {
	char name[FDSTORE_NAME_MAX + 1];
	bool is_file; /* a regular file, like a memfd: identified by these three */
	int access; /* O_RDONLY, O_WRONLY, O_RDWR */
	dev_t dev;
	ino_t ino;
};

struct fdstore {
	struct fdstore_entry *list;
	unsigned n, max;
	int first_fd;
	size_t names_size; /* sum for all names, with one separator each */
	size_t names_max;
};

int fdstore_init(struct fdstore *k, int first_fd, unsigned max, size_t names_max);
/* Closes all of them. */
void fdstore_deinit(struct fdstore *k);

/* 1 to FDSTORE_NAME_MAX printable ASCII characters, no ':'. */
bool fdstore_entry_is_name(const char *name, size_t size);

/*
 * Takes `fd`, which must not lie below the next free place, also when it is not kept. What is there under
 * this name already is not kept twice. -ENOSPC: no place; -E2BIG: no room for the name.
 */
int fdstore_add(struct fdstore *k, const char *name, int fd);
void fdstore_remove(struct fdstore *k, const char *name);

/* In a child: lets all of them live through exec. */
void fdstore_pass(const struct fdstore *k);
/* Appends ":NAME" for each to `s`, which has room for names_size and the terminator. */
void fdstore_append_names(const struct fdstore *k, char *s);

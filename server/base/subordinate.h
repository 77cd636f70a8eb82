/*
 * Subordinate users
 *
 * A user with a range of subordinate users (subuid(5)) can act as each of them, in a user namespace of its own. All that
 * is counted or limited by user is counted for the owner of the range; rights are still those of the number itself.
 * Ranges of root do not count: an administrator gave those to the containers of others.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct subordinate_range {
	uid_t first;
	uint32_t n;
	uid_t owner;
};

/* By first user. None has a user of another one, or an owner. */
struct subordinates {
	struct subordinate_range *ranges; /* from malloc() */
	unsigned n_ranges;
};

/*
 * Reads text as that of a file like /etc/subuid. Leaves out lines that have no range and users that do not exist; of ranges
 * with the same user, the line that comes first counts. A range with an owner has no users. May block, since users are looked up by name. -ENOMEM.
 */
int subordinates_parse(const char *text, size_t size, struct subordinates *ret);

/*
 * Reads the file. No file, and "": no ranges. -errno; -EPERM if users other than root and ours may write it.
 */
int subordinates_load(const char *path, struct subordinates *ret);

/* Uses these ranges from now on, which it takes. On the loop's thread, as the next. */
void subordinates_use(struct subordinates *s);

/* The user that this one is counted as: the owner of its range, or itself. */
uid_t subordinate_payer(uid_t uid);

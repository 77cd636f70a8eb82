#include "server/base/subordinate.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/base/nss.h"

#define FILE_SIZE_MAX (16 * MIB)

static struct subordinates in_use; /* the loop's */

/* --- Parsing --- */

/* A line "owner:first:number". False: it has no range that counts. */
static bool parse_line(char *line, struct subordinate_range *ret)
{
	const char *name = strsep(&line, ":"), *first = strsep(&line, ":");
	uint64_t from, n;

	if (!line || num_parse(first, 10, &from) < 0 || num_parse(line, 10, &n) < 0 || from == 0 ||
	    from >= UINT32_MAX || n == 0)
		return false;
	if (n > UINT32_MAX - from) /* the last number is no user */
		n = UINT32_MAX - from;
	ret->first = (uid_t)from;
	ret->n = (uint32_t)n;
	return nss_find_user(name, &ret->owner) == 0 && ret->owner != 0;
}

static int by_first(const void *a, const void *b)
{
	const struct subordinate_range *left = a, *right = b;

	return (left->first > right->first) - (left->first < right->first);
}

static bool overlaps(const struct subordinate_range *a, const struct subordinate_range *b)
{
	return a->first < (uint64_t)b->first + b->n && b->first < (uint64_t)a->first + a->n;
}

/* Adds it unless a range before it has one of its users. -ENOMEM. */
static int add(struct subordinates *s, const struct subordinate_range *range)
{
	struct subordinate_range *more;

	for (unsigned i = 0; i < s->n_ranges; i++)
		if (overlaps(&s->ranges[i], range))
			return 0;
	more = reallocarray(s->ranges, s->n_ranges + 1, sizeof(*more));
	if (!more)
		return -ENOMEM;
	s->ranges = more;
	s->ranges[s->n_ranges++] = *range;
	return 0;
}

static bool has_owner(const struct subordinates *s, const struct subordinate_range *range)
{
	for (unsigned i = 0; i < s->n_ranges; i++)
		if (s->ranges[i].owner >= range->first &&
		    s->ranges[i].owner - range->first < range->n)
			return true;
	return false;
}

/* Ranges with an owner go: each owner is counted as itself. */
static void drop_ranges_of_owners(struct subordinates *s)
{
	for (unsigned i = 0; i < s->n_ranges; i++)
		if (has_owner(s, &s->ranges[i]))
			s->ranges[i].n = 0;
}

int subordinates_parse(const char *text, size_t size, struct subordinates *ret)
{
	cleanup(freep) char *copy = strndup(text, size);
	struct subordinate_range range;
	struct subordinates s = {0};
	char *rest = copy, *line;
	int r = copy ? 0 : -ENOMEM;

	while (r == 0 && (line = strsep(&rest, "\n")))
		if (parse_line(line, &range))
			r = add(&s, &range);
	if (r < 0) {
		free(s.ranges);
		return r;
	}
	drop_ranges_of_owners(&s);
	if (s.n_ranges)
		qsort(s.ranges, s.n_ranges, sizeof(*s.ranges), by_first);
	*ret = s;
	return 0;
}

int subordinates_load(const char *path, struct subordinates *ret)
{
	cleanup(fd_closep) int fd = -1;
	cleanup(freep) char *text = NULL;
	uint64_t size;
	struct stat st;
	int r;

	*ret = (struct subordinates){0};
	if (!path[0])
		return 0;
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0 || fstat(fd, &st) < 0)
		return errno == ENOENT ? 0 : -errno;
	if ((st.st_uid != 0 && st.st_uid != geteuid()) || st.st_mode & 022)
		return -EPERM;
	if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size > FILE_SIZE_MAX)
		return -EFBIG;
	text = malloc((size_t)st.st_size + 1); /* malloc(0) may be NULL */
	r = text ? fd_read_all(fd, text, (uint64_t)st.st_size, &size) : -ENOMEM;
	return r < 0 ? r : subordinates_parse(text, size, ret);
}

/* --- Use --- */

void subordinates_use(struct subordinates *s)
{
	free(in_use.ranges);
	in_use = *s;
	*s = (struct subordinates){0};
}

static int compare_with_range(const void *key, const void *element)
{
	const struct subordinate_range *range = element;
	uid_t uid = *(const uid_t *)key;

	if (uid < range->first)
		return -1;
	return uid - range->first >= range->n;
}

uid_t subordinate_payer(uid_t uid)
{
	const struct subordinate_range *range = in_use.n_ranges ? bsearch(&uid, in_use.ranges,
									  in_use.n_ranges,
									  sizeof(*in_use.ranges),
									  compare_with_range)
								: NULL;

	return range ? range->owner : uid;
}

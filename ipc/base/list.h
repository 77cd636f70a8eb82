/*
 * Lists
 *
 * A doubly linked ring inside its members. Each member has a comment that names its list. An unlinked member points
 * at itself, so removing it twice is harmless.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

struct list {
	struct list *next, *prev;
};

static inline void list_init(struct list *l)
{
	l->next = l;
	l->prev = l;
}

static inline bool list_empty(const struct list *l)
{
	return l->next == l;
}

static inline void list_append(struct list *l, struct list *link)
{
	link->prev = l->prev;
	link->next = l;
	l->prev->next = link;
	l->prev = link;
}

static inline void list_remove(struct list *link)
{
	link->prev->next = link->next;
	link->next->prev = link->prev;
	list_init(link);
}

#define list_first(l, type, member) (list_empty(l) ? NULL : container_of((l)->next, type, member))

#define list_last(l, type, member) (list_empty(l) ? NULL : container_of((l)->prev, type, member))

#define list_for_each(pos, l, member)                                                              \
	for ((pos) = container_of((l)->next, __typeof__(*(pos)), member); &(pos)->member != (l);   \
	     (pos) = container_of((pos)->member.next, __typeof__(*(pos)), member))

/* Survives the removal of pos, and of pos alone. */
#define list_for_each_safe(pos, tmp, l, member)                                                    \
	for ((pos) = container_of((l)->next, __typeof__(*(pos)), member),                          \
	    (tmp) = container_of((pos)->member.next, __typeof__(*(pos)), member);                  \
	     &(pos)->member != (l);                                                                \
	     (pos) = (tmp), (tmp) = container_of((tmp)->member.next, __typeof__(*(pos)), member))

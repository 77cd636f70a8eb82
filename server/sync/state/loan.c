#include "server/sync/state/loan.h"

#include <stdlib.h>
#include <string.h>

#include "ipc/base/fd.h"
#include "server/sync/state/agent_hooks.h"

#define KEPT_MAX 32 /* loans of replicas: each has a process, and a connection to weightd */
#define IDLE_MAX 8 /* the same, for repairs only */
#define IDLE_NS (10 * SECOND) /* the longest time between two attempts of a node: see repair.c */

struct loan *loan_free(struct agent *a, struct loan *l)
{
	if (!l)
		return NULL;
	work_end(a, &l->work);
	list_remove(&l->link);
	(void)fd_close(l->layout_fd);
	(void)fd_close(l->data_fd);
	(void)fd_close(l->leaves_fd);
	(void)fd_close(l->companions_fd);
	free(l);
	return NULL;
}

void loan_forget(struct agent *a, struct replica *rep)
{
	rep->kept = loan_free(a, rep->kept);
	a->hooks->on_loan_unwanted(a, rep);
}

void loan_keep_to(struct agent *a, struct replica *rep, const uint8_t root[32])
{
	if (rep->kept && memcmp(rep->kept->root, root, sizeof(rep->kept->root)) != 0)
		loan_forget(a, rep);
}

void loan_forget_version(struct agent *a, struct replica *rep, uint64_t version)
{
	if (rep->kept && rep->kept->version == version)
		loan_forget(a, rep);
	else if (rep->version == version)
		a->hooks->on_loan_unwanted(a, rep);
}

void loan_forget_idle(struct agent *a, struct replica *rep)
{
	struct loan *l, *next;

	list_for_each_safe(l, next, &a->idle_loans, link)
		if (!rep || l->replica == rep)
			loan_forget(a, l->replica);
}

uint64_t loan_step(struct agent *a, uint64_t now)
{
	struct loan *l;

	while ((l = list_first(&a->idle_loans, struct loan, link)) && now >= l->kept_ns + IDLE_NS)
		loan_forget(a, l->replica);
	return l ? l->kept_ns + IDLE_NS : 0;
}

/* If there are too many, the buffer that was pushed longest ago loses its loan. */
static void loan_make_room(struct agent *a)
{
	struct replica *rep, *oldest = NULL;
	unsigned n = 0;

	list_for_each(rep, &a->replicas, link) {
		if (!rep->kept || !rep->kept->is_of_push)
			continue;
		n++;
		if (!oldest || rep->kept->kept_ns < oldest->kept->kept_ns)
			oldest = rep;
	}
	if (n >= KEPT_MAX)
		loan_forget(a, oldest);
}

void loan_keep(struct agent *a, struct loan *l)
{
	loan_forget(a, l->replica);
	loan_make_room(a);
	l->is_of_push = true;
	l->replica->kept = l;
}

void loan_keep_for_repairs(struct agent *a, struct loan *l)
{
	unsigned n_idle = 0;
	struct loan *each;

	l->replica->kept = l;
	if (l->is_of_push)
		return;
	list_append(&a->idle_loans, &l->link);
	list_for_each(each, &a->idle_loans, link)
		n_idle++;
	if (n_idle > IDLE_MAX)
		loan_forget(a, list_first(&a->idle_loans, struct loan, link)->replica);
}

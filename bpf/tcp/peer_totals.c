/*
 * A row holds the totals of its peer, which stay while there is one. Totals that are all zero are freed with their
 * last row, so that names alone do not fill the list.
 */
#include "bpf/tcp/peer_totals.h"

#include <stdlib.h>
#include <string.h>

void peer_totals_list_init(struct peer_totals_list *a)
{
	*a = (struct peer_totals_list){};
	list_init(&a->list);
	for (int i = 0; i < 2; i++) {
		(void)strcpy(a->others[i].peer, PEER_OTHER);
		a->others[i].is_payload = i == 1;
	}
}

static void peer_totals_free(struct peer_totals_list *a, struct peer_totals *sums)
{
	list_remove(&sums->link);
	a->n--;
	free(sums);
}

void peer_totals_list_deinit(struct peer_totals_list *a)
{
	struct peer_totals *sums, *next;

	list_for_each_safe(sums, next, &a->list, link)
		peer_totals_free(a, sums);
}

/*
 * True for a name without control characters of ASCII or ISO 8859. No program has to escape it to show it, so that no
 * two names look the same.
 */
static bool can_be_shown(const char *name)
{
	for (const unsigned char *s = (const unsigned char *)name; *s; s++)
		if (*s < 0x20 || *s == 0x7f || (*s == 0xc2 && s[1] >= 0x80 && s[1] < 0xa0))
			return false;
	return strcmp(name, PEER_OTHER) != 0;
}

static struct peer_totals *peer_totals_find(struct peer_totals_list *a, const struct label *label)
{
	struct peer_totals *sums;

	list_for_each(sums, &a->list, link)
		if (sums->is_payload == label->is_payload && !strcmp(sums->peer, label->peer))
			return sums;
	return NULL;
}

static struct peer_totals *peer_totals_get(struct peer_totals_list *a, const struct label *label)
{
	struct peer_totals *sums = peer_totals_find(a, label);

	if (sums)
		return sums;
	if (a->n < PEER_TOTALS_MAX && can_be_shown(label->peer))
		sums = calloc(1, sizeof(*sums));
	if (!sums)
		return &a->others[label->is_payload];
	(void)strcpy(sums->peer, label->peer);
	sums->is_payload = label->is_payload;
	list_append(&a->list, &sums->link);
	a->n++;
	return sums;
}

void peer_totals_join(struct peer_totals_list *a, struct row *row)
{
	row->peer_totals = peer_totals_get(a, &row->label);
	row->peer_totals->n_rows++;
}

static void sum_grow(uint64_t *sum, __u64 *counted, __u64 now)
{
	if (now <= *counted) /* smaller: the byte of a FIN, for example, which turned out to be none */
		return;
	*sum += now - *counted;
	*counted = now;
}

void peer_totals_take(struct row *row, const struct reading *now)
{
	struct peer_totals *sums = row->peer_totals;
	const struct totals *t = &now->totals;
	struct division d;

	sum_grow(&sums->opened, &row->counted.sockets, t->sockets);
	sum_grow(&sums->closed, &row->counted.closed, t->closed);
	sum_grow(&sums->lost, &row->counted.lost, t->lost);
	if (now->quality[COUNTER_SUBMITTED] == QUALITY_ABSENT)
		return;
	sums->is_known = true;
	for (int i = 0; i < N_COUNTERS; i++)
		sum_grow(&sums->counter[i], &row->counted.counter[i], t->counter[i]);
	if (!division_since(&row->divided, t, &d))
		return;
	division_rest(&d, row->rest.ns - row->rest_divided);
	sums->has_sent = true;
	for (int i = 0; i < N_LIMITS; i++)
		sums->limit_ns[i] += d.ns[i];
	row->divided = *t;
	row->rest_divided = row->rest.ns;
}

void peer_totals_leave(struct peer_totals_list *a, struct row *row)
{
	struct peer_totals *sums = row->peer_totals;

	sums->closed += row->counted.sockets - row->counted.closed;
	row->peer_totals = NULL;
	sums->n_rows--;
	if (!sums->n_rows && !sums->opened && sums != &a->others[sums->is_payload])
		peer_totals_free(a, sums);
}

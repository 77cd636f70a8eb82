/*
 * A row holds its account: one that has a row stays. One that nothing was ever counted in goes with its last
 * row, so that names alone do not fill the list.
 */
#include "bpf/tcp/peer_totals.h"

#include <stdlib.h>
#include <string.h>

void accounts_init(struct accounts *a)
{
	*a = (struct accounts){};
	list_init(&a->list);
	for (int i = 0; i < 2; i++) {
		(void)strcpy(a->others[i].peer, ACCOUNT_OTHER);
		a->others[i].is_payload = i == 1;
	}
}

static void account_free(struct accounts *a, struct account *account)
{
	list_remove(&account->link);
	a->n--;
	free(account);
}

void accounts_deinit(struct accounts *a)
{
	struct account *account, *next;

	list_for_each_safe(account, next, &a->list, link)
		account_free(a, account);
}

/* Who shows it need not change it, so that no two look the same: it has no control characters of ASCII or ISO 8859. */
static bool can_be_shown(const char *name)
{
	for (const unsigned char *s = (const unsigned char *)name; *s; s++)
		if (*s < 0x20 || *s == 0x7f || (*s == 0xc2 && s[1] >= 0x80 && s[1] < 0xa0))
			return false;
	return strcmp(name, ACCOUNT_OTHER) != 0;
}

static struct account *find(struct accounts *a, const struct label *label)
{
	struct account *account;

	list_for_each(account, &a->list, link)
		if (account->is_payload == label->is_payload && !strcmp(account->peer, label->peer))
			return account;
	return NULL;
}

static struct account *get(struct accounts *a, const struct label *label)
{
	struct account *account = find(a, label);

	if (account)
		return account;
	if (a->n < ACCOUNTS_MAX && can_be_shown(label->peer))
		account = calloc(1, sizeof(*account));
	if (!account)
		return &a->others[label->is_payload];
	(void)strcpy(account->peer, label->peer);
	account->is_payload = label->is_payload;
	list_append(&a->list, &account->link);
	a->n++;
	return account;
}

void account_join(struct accounts *a, struct row *row)
{
	row->account = get(a, &row->label);
	row->account->n_rows++;
}

static void grow(uint64_t *sum, __u64 *counted, __u64 now)
{
	if (now <= *counted) /* by the byte of a FIN, say, which is found to be none */
		return;
	*sum += now - *counted;
	*counted = now;
}

void account_take(struct row *row, const struct reading *now)
{
	struct account *account = row->account;
	const struct totals *t = &now->totals;
	struct division d;

	grow(&account->opened, &row->counted.sockets, t->sockets);
	grow(&account->closed, &row->counted.closed, t->closed);
	grow(&account->lost, &row->counted.lost, t->lost);
	if (now->quality[COUNTER_SUBMITTED] == QUALITY_ABSENT)
		return;
	account->is_known = true;
	for (int i = 0; i < N_COUNTERS; i++)
		grow(&account->counter[i], &row->counted.counter[i], t->counter[i]);
	if (!division_since(&row->divided, t, &d))
		return;
	division_rest(&d, row->rest.ns - row->rest_divided);
	account->has_sent = true;
	for (int i = 0; i < N_LIMITS; i++)
		account->limit_ns[i] += d.ns[i];
	row->divided = *t;
	row->rest_divided = row->rest.ns;
}

void account_leave(struct accounts *a, struct row *row)
{
	struct account *account = row->account;

	account->closed += row->counted.sockets - row->counted.closed;
	row->account = NULL;
	account->n_rows--;
	if (!account->n_rows && !account->opened && account != &a->others[account->is_payload])
		account_free(a, account);
}

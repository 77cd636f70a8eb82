/*
 * The sender alone reads and writes them. Found by open addressing.
 */
#include "bpf/nccl/sum.h"

#include <stddef.h>
#include <string.h>

static uint64_t mixed(uint64_t h, uint64_t n)
{
	return ((h ^ n) * 0x9e3779b97f4a7c15u) ^ ((h ^ n) >> 29);
}

static unsigned bucket_of(const struct sum *sum)
{
	uint64_t h = mixed((uint64_t)sum->kind << 1 | sum->is_send, sum->comm);

	h = mixed(mixed(mixed(h, (uint32_t)sum->peer), sum->number), (uint32_t)sum->device);
	return (unsigned)(h >> 32) % SUM_BUCKETS;
}

static bool are_of_one(const struct sum *a, const struct sum *b)
{
	return a->kind == b->kind && a->is_send == b->is_send && a->comm == b->comm &&
	       a->peer == b->peer && a->number == b->number && a->device == b->device;
}

/* That of its sum, or the free one where that belongs. */
static uint16_t *find_bucket(struct sums *s, const struct sum *sum)
{
	unsigned i = bucket_of(sum);

	while (s->buckets[i] && !are_of_one(&s->of[s->buckets[i] - 1], sum))
		i = (i + 1) % SUM_BUCKETS;
	return &s->buckets[i];
}

void sums_add(struct sums *s, const struct record *r)
{
	const struct sum new = {.kind = r->kind,
				.is_send = r->is_send,
				.comm = r->comm,
				.peer = r->peer,
				.device = r->device,
				.number = r->number,
				.first_ns = r->ns};
	uint16_t *bucket = find_bucket(s, &new);
	struct sum *sum;

	if (!*bucket && s->n == SUMS_MAX) {
		s->lost++;
		return;
	}
	if (!*bucket) {
		s->of[s->n++] = new;
		*bucket = (uint16_t)s->n;
	}
	sum = &s->of[*bucket - 1];
	sum->fd = r->fd;
	sum->bytes += r->bytes;
	sum->n++;
	sum->last_ns = r->ns;
}

void sums_drop(struct sums *s, uint16_t comm)
{
	unsigned n = s->n;

	s->n = 0;
	memset(s->buckets, 0, sizeof(s->buckets));
	for (unsigned i = 0; i < n; i++) {
		if (s->of[i].comm == comm)
			continue;
		s->of[s->n] = s->of[i];
		*find_bucket(s, &s->of[s->n]) = (uint16_t)(s->n + 1);
		s->n++;
	}
}

struct sum *sums_next_unreported(struct sums *s, unsigned from, int comm, uint64_t reported_ns)
{
	for (struct sum *sum = s->of + from; sum < s->of + s->n; sum++)
		if (sum->n > sum->n_reported && sum->reported_ns < reported_ns &&
		    (comm < 0 || sum->comm == comm))
			return sum;
	return NULL;
}

struct sum *sums_next_untagged(struct sums *s, uint64_t connection)
{
	for (struct sum *sum = s->of; sum < s->of + s->n; sum++)
		if (sum->kind == RECORD_SOCKET && sum->tagged != connection)
			return sum;
	return NULL;
}

void sums_set_tagged(struct sums *s, uint64_t cookie, uint64_t connection, bool is_refused)
{
	for (struct sum *sum = s->of; sum < s->of + s->n; sum++)
		if (sum->kind == RECORD_SOCKET && sum->number == cookie) {
			sum->tagged = connection;
			sum->is_refused = is_refused;
		}
}

void sums_forget_reported(struct sums *s)
{
	for (struct sum *sum = s->of; sum < s->of + s->n; sum++)
		sum->n_reported = sum->reported_ns = 0;
}

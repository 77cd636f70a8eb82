/*
 * A table of open addressing, read and written by teller alone.
 */
#include "bpf/nccl/sum.h"

#include <string.h>

#define N_MAX (SUM_PLACES / 4 * 3)

void sums_init(struct sums *s)
{
	s->places = s->tables[0];
}

static uint64_t mixed(uint64_t h, uint64_t n)
{
	return ((h ^ n) * 0x9e3779b97f4a7c15u) ^ ((h ^ n) >> 29);
}

static unsigned place_of(const struct record *r)
{
	uint64_t h = mixed(mixed(mixed((uint64_t)r->kind << 1 | r->is_send, r->comm),
				 (uint32_t)r->peer),
			   r->number);

	return (unsigned)(mixed(h, (uint32_t)r->device) >> 32) % SUM_PLACES;
}

static bool is_of(const struct sum *sum, const struct record *r)
{
	return sum->kind == r->kind && sum->is_send == r->is_send && sum->comm == r->comm &&
	       sum->peer == r->peer && sum->number == r->number && sum->device == r->device;
}

static struct sum *take(struct sums *s, const struct record *r)
{
	unsigned place = place_of(r);
	struct sum *sum;

	for (;; place = (place + 1) % SUM_PLACES) {
		sum = &s->places[place];
		if (!sum->is_there)
			break;
		if (is_of(sum, r))
			return sum;
	}
	if (s->n == N_MAX)
		return NULL;
	*sum = (struct sum){.kind = r->kind,
			    .is_there = true,
			    .is_send = r->is_send,
			    .comm = r->comm,
			    .peer = r->peer,
			    .fd = r->fd,
			    .device = r->device,
			    .number = r->number,
			    .first_ns = r->ns};
	s->n++;
	return sum;
}

void sums_add(struct sums *s, const struct record *r)
{
	struct sum *sum = take(s, r);

	if (!sum) {
		s->lost++;
		return;
	}
	sum->fd = r->fd;
	sum->bytes += r->bytes;
	sum->n++;
	sum->last_ns = r->ns;
}

/* Those that stay are where they are found only if all are put in anew. */
void sums_drop(struct sums *s, uint16_t comm)
{
	const struct sum *old = s->places;

	s->places = s->tables[old == s->tables[0]];
	memset(s->places, 0, sizeof(s->tables[0]));
	s->n = 0;
	for (const struct sum *sum = old; sum < old + SUM_PLACES; sum++) {
		const struct record r = {.kind = sum->kind,
					 .is_send = sum->is_send,
					 .comm = sum->comm,
					 .peer = sum->peer,
					 .device = sum->device,
					 .number = sum->number};

		if (sum->is_there && sum->comm != comm)
			*take(s, &r) = *sum;
	}
}

struct sum *sums_next_untold(struct sums *s, unsigned place, int comm, uint64_t told_ns)
{
	for (; place < SUM_PLACES; place++) {
		struct sum *sum = &s->places[place];

		if (sum->is_there && sum->n > sum->n_told && sum->told_ns < told_ns &&
		    (comm < 0 || sum->comm == comm))
			return sum;
	}
	return NULL;
}

struct sum *sums_next_untagged(struct sums *s, uint64_t connection)
{
	for (struct sum *sum = s->places; sum < s->places + SUM_PLACES; sum++)
		if (sum->is_there && sum->kind == RECORD_SOCKET && sum->tagged != connection)
			return sum;
	return NULL;
}

void sums_forget_told(struct sums *s)
{
	for (struct sum *sum = s->places; sum < s->places + SUM_PLACES; sum++)
		sum->n_told = sum->told_ns = 0;
}

unsigned sums_place(const struct sums *s, const struct sum *sum)
{
	return (unsigned)(sum - s->places);
}

void sums_set_tagged(struct sums *s, uint64_t cookie, uint64_t connection, bool is_refused)
{
	for (struct sum *sum = s->places; sum < s->places + SUM_PLACES; sum++)
		if (sum->is_there && sum->kind == RECORD_SOCKET && sum->number == cookie) {
			sum->tagged = connection;
			sum->is_refused = is_refused;
		}
}

#include "server/sync/operation.h"

#include <errno.h>
#include <string.h>

#include "ipc/base/num.h"
#include "server/sync/base/fields.h"
#include "server/sync/base/planned.h"

#define N_BYTES_MAX ((uint64_t)1 << 50)
#define N_OTHERS_MAX ((uint64_t)1 << 32)

static uint64_t planned_average(const struct owned *o, unsigned x, unsigned y)
{
	return gloo_planned_average(o->n_others, o->at[x].n_pieces + o->at[y].n_pieces,
				    o->at[x].n_bytes + o->at[y].n_bytes);
}

static const struct operation OPERATIONS[] = {
	{.name = "average",
	 .kind = KIND_AVERAGE,
	 .engine = JOB_GLOO,
	 .lend = "lend",
	 .make = "make",
	 .schedule = "all-to-all",
	 .are_equal = true,
	 .planned = planned_average},
};

const struct operation *operation_find(const char *name)
{
	for (unsigned i = 0; i < ARRAY_LEN(OPERATIONS); i++)
		if (strcmp(OPERATIONS[i].name, name) == 0)
			return &OPERATIONS[i];
	return NULL;
}

int owned_read(const json_t *opened, unsigned n, struct owned *ret)
{
	struct owned o = {.n = n};
	json_t *shares;

	if (n > OPERATION_NODES_MAX || field_array(opened, "shares", n, &shares) < 0 ||
	    json_array_size(shares) != n ||
	    field_number(opened, "n_others", N_OTHERS_MAX, &o.n_others) < 0)
		return -EBADMSG;
	for (unsigned i = 0; i < n; i++) {
		json_int_t n_pieces, n_bytes;

		if (json_unpack(json_array_get(shares, i), "[I, I !]", &n_pieces, &n_bytes) < 0 ||
		    n_pieces < 0 || n_bytes < 0 || (uint64_t)n_bytes > N_BYTES_MAX ||
		    n_pieces > n_bytes)
			return -EBADMSG;
		o.at[i].n_pieces = (uint64_t)n_pieces;
		o.at[i].n_bytes = (uint64_t)n_bytes;
	}
	*ret = o;
	return 0;
}

uint64_t owned_total(const struct owned *o)
{
	uint64_t n = 0;

	for (unsigned i = 0; i < o->n; i++)
		n += o->at[i].n_bytes;
	return n;
}

uint64_t operation_planned(const struct operation *op, const struct owned *o, unsigned rank)
{
	uint64_t n = 0;

	for (unsigned i = 0; i < o->n; i++)
		n += i == rank ? 0 : op->planned(o, i, rank);
	return n;
}

/*
 * The plan is what its coordinator says: our engine carries it out only where it stays within the memory that we give
 * and make. Before that memory is taken there are bounds on all that is announced.
 */
#include "server/sync/participant/shard.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "ipc/base/fd.h"
#include "server/sync/base/json_fields.h"
#include "server/sync/participant/contributor.h"
#include "server/sync/state/time_limit.h"

static struct shard *shard_of(struct contributor *c)
{
	return &c->invitation.shard;
}

/* --- Requests to this node ---------------------------------------------------------------------- */

static int read_source(const json_t *row, const char *us, struct shard *ret)
{
	const char *node, *buffer;
	uint64_t version;

	if (field_string(row, "node", NODE_MAX, &node) < 0 ||
	    field_string(row, "buffer", BUFFER_MAX, &buffer) < 0 ||
	    field_number(row, "version", INT64_MAX, &version) < 0)
		return -EBADMSG;
	if (strcmp(node, us) != 0)
		return 0;
	if (ret->gives)
		return -EBADMSG;
	ret->gives = true;
	ret->version = version;
	snprintf(ret->source, sizeof(ret->source), "%s", buffer);
	return 0;
}

int shard_read(const struct agent *a, const json_t *message, struct shard *ret)
{
	struct shard x = {.plan_fd = -1, .layout_fd = -1};
	json_t *sources, *targets, *row;
	size_t i;

	if (field_array(message, "sources", COLLECTIVE_OP_NODES_MAX, &sources) < 0 ||
	    field_array(message, "targets", COLLECTIVE_OP_NODES_MAX, &targets) < 0)
		return -EBADMSG;
	json_array_foreach(sources, i, row)
	{
		if (read_source(row, a->config->name, &x) < 0)
			return -EBADMSG;
	}
	json_array_foreach(targets, i, row)
	{
		if (!json_is_string(row))
			return -EBADMSG;
		x.gets |= strcmp(json_string_value(row), a->config->name) == 0;
	}
	if (!x.gives && !x.gets)
		return -EBADMSG;
	*ret = x;
	return 0;
}

void shard_deinit(struct shard *x)
{
	x->plan_fd = fd_close(x->plan_fd);
	x->layout_fd = fd_close(x->layout_fd);
}

void shard_offer(struct agent *a, struct contributor *c)
{
	struct participant *p = &c->participant;
	json_t *fields = json_pack("{s:s}", "address", a->config->data_addresses[0]);
	char hex[65];

	participant_set_state(a, p, PARTICIPANT_READY, 0);
	if (!shard_of(c)->gives) {
		participant_tell(a, p, "ready", fields);
		return;
	}
	json_object_update_new(fields, json_pack("{s:I, s:I, s:s, s:I}", "n_bytes",
						 (json_int_t)shard_of(c)->given_bytes, "version",
						 (json_int_t)c->lent, "layout",
						 field_hex(c->layout, 32, hex), "layout_bytes",
						 (json_int_t)c->layout_bytes));
	participant_tell(a, p, "ready", fields);
	if (agent_send_blob(a, p->coordinator, c->layout, c->layout_fd, c->layout_bytes) < 0)
		participant_give_up(a, p, "failed", "its layout cannot be sent");
}

/* --- The plan ----------------------------------------------------------------------------------- */

/*
 * Reads the result that we get, of which nothing is here yet. Returns the code of a refusal, or
 * NULL.
 */
static const char *take_result(struct agent *a, struct contributor *c, const json_t *message,
			       char why[WHY_SIZE])
{
	struct participant *p = &c->participant;
	struct shard *x = shard_of(c);
	uint64_t max = a->config->max_bytes;

	if (field_number(message, "n_bytes", MOVES_BYTES_MAX, &p->n_bytes) < 0 || !p->n_bytes ||
	    field_number(message, "layout_bytes", SHARD_LAYOUT_MAX, &x->layout_bytes) < 0 ||
	    !x->layout_bytes || field_bytes(message, "layout", x->layout, 32) < 0) {
		snprintf(why, WHY_SIZE, "its coordinator does not say what it gets");
		return "order";
	}
	if (!max || p->n_bytes <= max)
		return NULL;
	snprintf(why, WHY_SIZE, "its shard would have %ju bytes, and max-bytes of %s is %ju",
		 (uintmax_t)p->n_bytes, a->config->name, (uintmax_t)max);
	return "size";
}

void shard_on_plan(struct agent *a, struct participant *p, const json_t *message)
{
	struct contributor *c = contributor_of(p);
	struct shard *x = shard_of(c);
	const char *code = NULL;
	char why[WHY_SIZE];

	if (!p->is_own || p->state != PARTICIPANT_READY || x->has_plan ||
	    field_number(message, "plan_bytes", MOVES_SIZE_MAX, &x->plan_bytes) < 0 ||
	    !x->plan_bytes || field_bytes(message, "plan", x->plan, 32) < 0) {
		participant_out_of_order(a, p, "plan");
		return;
	}
	x->has_plan = true;
	participant_set_state(a, p, PARTICIPANT_WANT,
			      0); /* whatever else comes first: there is the whole */
	if (x->gets)
		code = take_result(a, c, message, why);
	p->whole_ns = agent_now(a) + 2 * time_limit_to_move(a, 0, 0) +
		      time_limit_to_send(COLLECTIVE_OP_NODES_MAX * (x->plan_bytes + x->layout_bytes));
	if (code)
		participant_give_up(a, p, code, why);
}

/* Nodes and links, and what of them is ours. -errno with a sentence. */
static int read_plan(struct agent *a, struct contributor *c, char why[MOVES_WHY_SIZE])
{
	struct moves *plan = &c->flows.plan;
	struct shard *x = shard_of(c);
	void *text = mmap(NULL, x->plan_bytes, PROT_READ, MAP_SHARED, x->plan_fd, 0);
	int r;

	if (text == MAP_FAILED) {
		r = -errno;
		snprintf(why, MOVES_WHY_SIZE, "the plan cannot be mapped: %s", strerror(-r));
		return r;
	}
	r = moves_decode_links(text, x->plan_bytes, plan, why);
	(void)munmap(text, x->plan_bytes);
	if (r == 0)
		c->participant.whole_ns = agent_now(a) +
					  2 * time_limit_to_move(a, collective_op_most(plan), 0);
	return r;
}

static void on_all_there(struct agent *a, struct contributor *c)
{
	char why[MOVES_WHY_SIZE];

	if (read_plan(a, c, why) < 0)
		participant_give_up(a, &c->participant, "plan", why);
	else
		contributor_prepare(a, c);
}

/* The descriptor that a blob of this peer is for. NULL: there is none. */
static int *awaited(const struct agent *a, unsigned peer, const uint8_t hash[32],
		    struct contributor **ret, uint64_t *ret_size)
{
	struct participant *p;

	list_for_each(p, &a->participants, link) {
		struct shard *x;

		if (p->kind != KIND_RESHARD || p->state != PARTICIPANT_WANT ||
		    p->coordinator != peer)
			continue;
		*ret = contributor_of(p);
		x = shard_of(*ret);
		if (!x->has_plan)
			continue;
		*ret_size = x->plan_bytes;
		if (x->plan_fd < 0 && memcmp(x->plan, hash, 32) == 0)
			return &x->plan_fd;
		*ret_size = x->layout_bytes;
		if (x->gets && x->layout_fd < 0 && memcmp(x->layout, hash, 32) == 0)
			return &x->layout_fd;
	}
	return NULL;
}

uint64_t shard_blob_limit(const struct agent *a, unsigned peer, const uint8_t hash[32])
{
	struct contributor *c;
	uint64_t size;

	return awaited(a, peer, hash, &c, &size) ? size : 0;
}

void shard_on_blob(struct agent *a, unsigned peer, const uint8_t hash[32], int fd, uint64_t size)
{
	struct contributor *c;
	uint64_t awaited_size;
	int *ret = awaited(a, peer, hash, &c, &awaited_size);

	if (!ret || size != awaited_size)
		return;
	*ret = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	if (*ret < 0)
		participant_give_up(a, &c->participant, "memory",
				    "there are no descriptors for its plan");
	else if (shard_of(c)->plan_fd >= 0 && (!shard_of(c)->gets || shard_of(c)->layout_fd >= 0))
		on_all_there(a, c);
}

/* --- The engine --------------------------------------------------------------------------------- */

unsigned shard_open(const struct contributor *c, json_t *order, int ret_fds[3])
{
	const struct shard *x = &c->invitation.shard;
	unsigned n = 0;

	json_object_set_new(order, "n_bytes", json_integer((json_int_t)x->given_bytes));
	json_object_set_new(order, "result_bytes",
			    json_integer((json_int_t)(x->gets ? c->participant.n_bytes : 0)));
	if (x->gives)
		ret_fds[n++] = c->data_fd;
	if (x->gets)
		ret_fds[n++] = c->participant.memory_fd;
	ret_fds[n++] = x->plan_fd;
	return n;
}

/*
 * An engine of this node lives for one epoch, and what it says counts while that lasts. However it ends, what came is
 * kept, and the coordinator is told what is still missing.
 */
#include "server/sync/leg.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/fd.h"
#include "server/sync/base/fields.h"
#include "server/sync/delta.h"
#include "server/sync/epoch.h"
#include "server/sync/history.h"
#include "server/sync/pairing.h"
#include "server/sync/repair.h"
#include "server/sync/transaction.h"

#define ENGINE_NAME_MAX 16
#define PROGRESS_NS (SECOND / 4)

/* What is missing of what the epoch carries. */
static struct ranges *missing(struct party *p)
{
	return p->by_patch ? &p->patch_missing : &p->missing;
}

/* All of it came: with that nothing is missing, until verify says so. */
static void apply_patch(struct agent *a, struct party *p)
{
	work_tell(a, &p->sink, json_pack("{s:s}", "op", "patch"), &p->patch_fd, 1);
	p->patch_fd = fd_close(p->patch_fd);
	ranges_deinit(&p->missing);
	ranges_init(&p->missing);
}

/* What came is there, and the engine is gone. */
static void engine_over(struct agent *a, struct party *p, uint64_t done)
{
	uint64_t before = ranges_total(missing(p));
	struct ranges came;

	work_end(a, &p->engine);
	ranges_init(&came);
	/* Without memory, what came is asked for again. */
	if (done <= p->expected && ranges_prefix(&p->ranges, done, &came) == 0)
		(void)ranges_remove_all(missing(p), &came);
	ranges_deinit(&came);
	if (p->by_patch && before && !p->patch_missing.n)
		apply_patch(a, p);
	if (ranges_total(missing(p)) < before)
		p->idle_ns = agent_now(a) + repair_patience(a);
	party_set_state(a, p, PARTY_READY, 0);
}

/* `stripe` may be NULL. */
static void tell_broken(struct agent *a, struct party *p, uint64_t done, const char *from,
			const char *to, const char *why, json_t *stripe)
{
	engine_over(a, p, done);
	party_tell(a, p, "broken",
		   json_pack("{s:I, s:s, s:s?, s:s?, s:o, s:O*}", "epoch", (json_int_t)p->epoch,
			     "why", why, "from", from, "to", to, "missing",
			     ranges_to_json(missing(p)), "stripe", stripe));
}

void leg_break(struct agent *a, struct party *p, uint64_t done, const char *from, const char *to,
	       const char *why)
{
	tell_broken(a, p, done, from, to, why, NULL);
}

/* Where its engine listens, if at several addresses. -EBADMSG. */
static int describe_ports(const struct agent *a, const struct party *p, const json_t *opened,
			  json_t **ret)
{
	unsigned n = a->config->n_data_addresses;
	json_t *ports;
	const json_t *port;
	size_t i;

	*ret = NULL;
	if (n == 1 || p->gloo)
		return 0;
	if (field_array(opened, "ports", STRIPES_MAX, &ports) < 0 || json_array_size(ports) != n)
		return -EBADMSG;
	*ret = json_array();
	json_array_foreach(ports, i, port)
		json_array_append_new(*ret, json_pack("{s:s, s:I}", "address",
						      a->config->data_addresses[i], "port",
						      json_integer_value(port)));
	return 0;
}

static void on_engine_opened(struct agent *a, struct party *p, const json_t *message)
{
	const char *hello;
	json_t *stripes;
	uint64_t port;

	if (p->state != PARTY_OPENING || field_number(message, "port", 65535, &port) < 0 || !port ||
	    field_string_or_null(message, "hello", HELLO_MAX, &hello) < 0 ||
	    describe_ports(a, p, message, &stripes) < 0) {
		leg_break(a, p, 0, NULL, NULL, "the engine answered something else than was asked");
		return;
	}
	party_set_state(a, p, PARTY_OPEN, 0);
	party_tell(a, p, "opened",
		   json_pack("{s:I, s:s, s:I, s:o*, s:o, s:s*}", "epoch", (json_int_t)p->epoch,
			     "address", a->config->data_addresses[0], "port", (json_int_t)port,
			     "stripes", stripes, "missing", ranges_to_json(missing(p)), "hello",
			     hello));
}

static void on_engine_progress(struct agent *a, struct party *p, const json_t *message)
{
	uint64_t now = agent_now(a), done, since = now - p->reported_ns;

	if (p->state != PARTY_MOVING || field_number(message, "done", p->expected, &done) < 0 ||
	    done < p->done)
		return;
	/* An engine may still have to send what it has: its `sent` is progress as well. */
	p->deadline_ns = now + 2 * a->config->stall_ns;
	p->done = done;
	if ((since < PROGRESS_NS && done != p->expected) || done == p->reported || !since)
		return;
	p->rate = (uint64_t)((double)(done - p->reported) * 1e9 / (double)since);
	p->reported = done;
	p->reported_ns = now;
	party_tell(a, p, "progress",
		   json_pack("{s:I, s:I, s:I}", "epoch", (json_int_t)p->epoch, "done",
			     (json_int_t)done, "rate", (json_int_t)p->rate));
	history_party_event(a, p);
}

static void on_engine_done(struct agent *a, struct party *p, const json_t *message)
{
	json_t *in = json_object_get(message, "in"), *out = json_object_get(message, "out");
	uint64_t planned;

	if (p->state != PARTY_MOVING) {
		leg_break(a, p, 0, NULL, NULL, "the engine ended before it was started");
		return;
	}
	p->done = p->expected;
	planned = epoch_planned(a, p->gloo, &p->ranges, p->n_stripes_in);
	tally_add(&p->tally, planned, in);
	metrics_on_received(a, p->from, planned, in);
	if (p->to[0])
		metrics_on_sent(a, p->to, epoch_planned(a, p->gloo, &p->ranges, p->n_stripes_out),
				out);
	engine_over(a, p, p->expected);
	party_tell(a, p, "done",
		   json_pack("{s:I, s:O?, s:O?}", "epoch", (json_int_t)p->epoch, "in", in, "out",
			     out));
}

static void on_engine_failed(struct agent *a, struct party *p, const json_t *message)
{
	const char *why = "its engine failed", *from = NULL, *to = NULL;
	uint64_t done;

	(void)field_string(message, "why", WHY_SIZE - 1, &why);
	(void)field_string_or_null(message, "from", NODE_MAX, &from);
	(void)field_string_or_null(message, "to", NODE_MAX, &to);
	if (field_number(message, "done", p->expected, &done) < 0 || done < p->done)
		done = p->done;
	tell_broken(a, p, done, from, to, why, json_object_get(message, "stripe"));
}

bool leg_is_under_way(const struct party *p)
{
	return p->state == PARTY_OPENING || p->state == PARTY_OPEN || p->state == PARTY_MOVING;
}

static void on_engine_message(struct agent *a, struct work *w, const json_t *message, int *fds,
			      unsigned n_fds)
{
	struct party *p = container_of(w, struct party, engine);
	const char *op;

	(void)fds, (void)n_fds;
	if (!leg_is_under_way(p))
		return;
	if (field_string(message, "op", 32, &op) < 0)
		op = "";
	if (strcmp(op, "opened") == 0)
		on_engine_opened(a, p, message);
	else if (strcmp(op, "progress") == 0)
		on_engine_progress(a, p, message);
	else if (strcmp(op, "done") == 0)
		on_engine_done(a, p, message);
	else
		on_engine_failed(a, p, message);
}

static void on_engine_end(struct agent *a, struct work *w, const char *how)
{
	struct party *p = container_of(w, struct party, engine);
	char why[WHY_SIZE];

	if (!leg_is_under_way(p))
		return;
	snprintf(why, sizeof(why), "the engine of %s ended (%s)", a->config->name, how);
	leg_break(a, p, p->done, NULL, NULL, why);
}

/* `ret_patch` is the size of the patch; 0: it is of the version. */
static int read_open(struct party *p, const json_t *message, uint64_t *ret_epoch,
		     uint8_t ret_token[32], const char **ret_from, uint64_t *ret_patch,
		     struct ranges *ret_ranges)
{
	const uint64_t n_bytes = p->document->n_bytes;

	if (field_number(message, "epoch", PARTY_EPOCH_MAX, ret_epoch) < 0 ||
	    field_bytes(message, "token", ret_token, 32) < 0 ||
	    field_string(message, "from", NODE_MAX, ret_from) < 0 ||
	    field_number_or(message, "patch", n_bytes / DELTA_WORTH, 0, ret_patch) < 0)
		return -EBADMSG;
	if (ranges_from_json(json_object_get(message, "ranges"), *ret_patch ? *ret_patch : n_bytes,
			     ret_ranges) < 0)
		return -EBADMSG;
	return ret_ranges->n && ret_ranges->n <= EPOCH_RANGES_MAX ? 0 : -EBADMSG;
}

/*
 * Memory for a patch, which was never one of the version's: what is sent of it comes to nothing but time. -errno; of
 * another size than the one before, -EBADMSG.
 */
static int make_room(struct party *p, uint64_t size)
{
	cleanup(fd_closep) int fd = -1;
	int r;

	if (p->patch_size)
		return p->patch_size == size && p->patch_fd >= 0 ? 0 : -EBADMSG;
	r = ranges_add(&p->patch_missing, 0, size);
	if (r == 0)
		r = fd_memfd("weightd-sync-patch", size, &fd);
	if (r == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
		r = -errno;
	if (r < 0)
		return r; /* all of it stays missing */
	p->patch_fd = take_fd(fd);
	p->patch_size = size;
	return 0;
}

void leg_on_open(struct agent *a, struct party *p, const json_t *message)
{
	struct ranges ranges;
	uint8_t token[32];
	char why[WHY_SIZE], hex[65];
	const char *from, *engine;
	uint64_t epoch, patch;
	int r;

	ranges_init(&ranges);
	if (p->state != PARTY_READY ||
	    read_open(p, message, &epoch, token, &from, &patch, &ranges) < 0 ||
	    field_string_or_null(message, "engine", ENGINE_NAME_MAX, &engine) < 0 ||
	    epoch <= p->epoch) {
		ranges_deinit(&ranges);
		party_out_of_order(a, p, "open");
		return;
	}
	ranges_deinit(&p->ranges);
	p->ranges = ranges;
	p->expected = ranges_total(&ranges);
	p->epoch = epoch;
	p->done = p->reported = p->rate = 0;
	snprintf(p->from, sizeof(p->from), "%s", from);
	p->to[0] = '\0';
	p->gloo = engine && !strcmp(engine, "gloo");
	p->by_patch = patch;
	r = patch ? make_room(p, patch) : 0;
	if (r < 0) {
		snprintf(why, sizeof(why), "%s has no memory for a patch: %s", a->config->name,
			 strerror(-r));
		leg_break(a, p, 0, NULL, NULL, why);
		return;
	}
	if (engine && strcmp(engine, "tcp") != 0 && !p->gloo) {
		snprintf(why, sizeof(why), "%s knows no engine '%s'", a->config->name, engine);
		leg_break(a, p, 0, NULL, NULL, why);
		return;
	}
	p->engine = (struct work){.on_message = on_engine_message, .on_end = on_engine_end};
	if (work_start(a, &p->engine, p->gloo ? JOB_GLOO : JOB_ENGINE, why) < 0) {
		leg_break(a, p, 0, NULL, NULL, why);
		return;
	}
	party_set_state(a, p, PARTY_OPENING, a->config->prepare_ns);
	work_tell(a, &p->engine,
		  epoch_open_engine(a, p->sync, epoch, patch ? patch : p->document->n_bytes, from,
				    field_hex(token, 32, hex), &p->ranges),
		  patch ? &p->patch_fd : &p->memory_fd, 1);
}

/* Where the bytes go on to: null, or all of it. */
static int check_next(const struct agent *a, const json_t *next, const char **ret_node)
{
	const char *address;
	uint8_t token[32];
	uint64_t port;

	*ret_node = NULL;
	if (json_is_null(next))
		return 0;
	if (field_string(next, "node", NODE_MAX, ret_node) < 0 ||
	    field_string(next, "address", 255, &address) < 0 ||
	    field_number(next, "port", 65535, &port) < 0 || !port ||
	    field_bytes(next, "token", token, 32) < 0 || !pairing_is_sound(a, next))
		return -EBADMSG;
	return 0;
}

void leg_on_start(struct agent *a, struct party *p, const json_t *message)
{
	json_t *next = json_object_get(message, "next");
	const char *to = NULL, *hello, *from_address;
	uint64_t max_rate, n_stripes, whole_ns = 0;

	if (p->state != PARTY_OPEN || !next || check_next(a, next, &to) < 0 ||
	    field_number_or(message, "from_stripes", STRIPES_MAX, 1, &n_stripes) < 0 ||
	    !n_stripes || field_string_or_null(message, "from_hello", HELLO_MAX, &hello) < 0 ||
	    field_string_or_null(message, "from_address", 255, &from_address) < 0 ||
	    field_number_or(message, "max_rate", INT64_MAX, 0, &max_rate) < 0) {
		party_out_of_order(a, p, "start");
		return;
	}
	snprintf(p->to, sizeof(p->to), "%s", to ? to : "");
	p->n_stripes_in = (unsigned)n_stripes;
	p->n_stripes_out = (unsigned)json_array_size(json_object_get(next, "stripes"));
	p->reported_ns = agent_now(a);
	if (max_rate)
		whole_ns = p->begun_ns + 2 * agent_time_to_move(a, p->document->n_bytes, max_rate);
	p->whole_ns = whole_ns > p->whole_ns ? whole_ns : p->whole_ns;
	party_set_state(a, p, PARTY_MOVING, 2 * a->config->stall_ns);
	work_tell(a, &p->engine,
		  json_pack("{s:s, s:O, s:I, s:s*, s:s*}", "op", "start", "next", next, "max_rate",
			    (json_int_t)max_rate, "from_address", from_address, "from_hello", hello),
		  NULL, 0);
}

void leg_on_stop(struct agent *a, struct party *p, const json_t *message)
{
	(void)message;
	/* It may have been under way while we told that the epoch is done or broken. */
	if (!leg_is_under_way(p))
		return;
	engine_over(a, p, p->done);
	party_tell(a, p, "stopped",
		   json_pack("{s:I, s:o}", "epoch", (json_int_t)p->epoch, "missing",
			     ranges_to_json(missing(p))));
}

/*
 * All events of a request are checked before the first is emitted: an event has the members of its word, and no
 * others.
 */
#include "bpf/client_event.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "bpf/base/json_null.h"
#include "bpf/event/event.h"
#include "bpf/event/event_cause.h"
#include "bpf/probe/probe_question.h"
#include "bpf/rdma/qp.h"
#include "bpf/tracer.h"
#include "ipc/base/num.h"

#define SECOND_NS 1000000000u
#define MEMBERS_MAX 24

enum kind_of_member {
	NUMBER, /* or null, which means unknown; the others too */
	TEXT,
	FLAG,
	TIME, /* a number, in the past */
};

struct word {
	const char *source; /* the source that has it */
	const char *word;
	struct {
		const char *name;
		enum kind_of_member kind;
	} members[MEMBERS_MAX]; /* up to one without a name */
	/* Adds the tracer's own data about the object of the event; NULL: there is none. */
	void (*join)(const struct client *c, json_t *event);
};

static uint64_t number_of(const json_t *event, const char *key)
{
	return (uint64_t)json_integer_value(json_object_get(event, key));
}

/*
 * Finds the queue pair by its number alone: NCCL numbers devices within a connection. Calls may have returned that
 * are not taken yet.
 */
static void join_qp(const struct client *c, json_t *event)
{
	const struct qp_name name = {.pid = c->pid,
				     .began_ticks = c->began_ticks,
				     .number = number_of(event, "qp")};
	const struct qp *qp = probe_question_find_qp(c->tracer->questions[QUESTION_PROBES], &name,
						     number_of(event, "since_ns"),
						     number_of(event, "ns"));

	if (!c->began_ticks || !json_is_integer(json_object_get(event, "qp")))
		qp = NULL;
	event_cause_set(event, qp ? &qp->cause : NULL);
	if (!qp)
		return;
	(void)json_object_set_new(event, "rdma_device",
				  chars_or_null(qp->name.device, sizeof(qp->name.device)));
	qp_peer_set(event, &qp->peer);
}

/* clang-format off */
#define OF_COMM {"sync", TEXT}, {"communicator", TEXT}, {"hash", TEXT}, {"rank", NUMBER}
#define OF_TASK \
	OF_COMM, {"took_ns", NUMBER}, {"func", TEXT}, {"count", NUMBER}, {"datatype", TEXT}, {"bytes", NUMBER}, \
	{"channels", NUMBER}, {"ops", NUMBER}, {"sent", NUMBER}, {"received", NUMBER}
#define OF_SUM OF_COMM, {"peer", NUMBER}, {"way", TEXT}, {"bytes", NUMBER}, {"events", NUMBER}, {"since_ns", TIME}

static const struct word words[] = {
	/* bpf/nccl/report.c writes these. */
	{"nccl", "nccl_comm", {OF_COMM, {"n_ranks", NUMBER}, {"n_nodes", NUMBER}, {"api", NUMBER}, {"state", TEXT},
			       {"colls", NUMBER}, {"p2ps", NUMBER}, {"untold", NUMBER}},
	 NULL},
	{"nccl", "nccl_coll", {OF_TASK, {"root", NUMBER}, {"seq", NUMBER}, {"algo", TEXT}, {"proto", TEXT}}, NULL},
	{"nccl", "nccl_p2p", {OF_TASK, {"peer", NUMBER}}, NULL},
	{"nccl", "nccl_peer", {OF_SUM}, NULL},
	{"nccl", "nccl_socket", {OF_SUM, {"fd", NUMBER}, {"cookie", NUMBER}, {"counted", FLAG}}, NULL},
	{"nccl", "nccl_qp", {OF_SUM, {"device", NUMBER}, {"qp", NUMBER}}, join_qp},
	{"nccl", "nccl_gap", {{"lost", NUMBER}, {"from_ns", TIME}}, NULL},
	/* weightd-sync this one. */
	{"sync", "sync_phase", {{"sync", TEXT}, {"role", TEXT}, {"phase", TEXT}, {"took_ns", NUMBER}}, NULL},
};
/* clang-format on */

static bool is_of_kind(const json_t *value, enum kind_of_member kind, uint64_t now_ns)
{
	json_int_t n = json_integer_value(value);
	size_t size = json_string_length(value);

	switch (kind) {
	case NUMBER:
		return json_is_null(value) || (json_is_integer(value) && n >= 0);
	case TEXT:
		return json_is_null(value) ||
		       (json_is_string(value) && size > 0 && size < ROW_TEXT_SIZE);
	case FLAG:
		return json_is_boolean(value);
	case TIME:
		return json_is_integer(value) && n >= 0 && (uint64_t)n <= now_ns;
	}
	return false;
}

static const struct word *find_word(const char *source, const json_t *event)
{
	const char *name = json_string_value(json_object_get(event, "act"));

	for (size_t i = 0; name && i < ARRAY_LEN(words); i++)
		if (!strcmp(words[i].source, source) && !strcmp(words[i].word, name))
			return &words[i];
	return NULL;
}

/* The first, for an error: each source has one. */
static const char *word_of(const char *source)
{
	const struct word *word = words;

	while (strcmp(word->source, source) != 0)
		word++;
	return word->word;
}

static int client_event_check(struct request *q, const char *source, const json_t *event,
			      uint64_t now_ns)
{
	const struct word *word = find_word(source, event);
	size_t n = 0;

	if (!word) {
		(void)snprintf(q->why, sizeof(q->why), "unknown 'act' for source '%s' (try '%s')",
			       source, word_of(source));
		return -EINVAL;
	}
	for (; word->members[n].name; n++)
		if (!is_of_kind(json_object_get(event, word->members[n].name),
				word->members[n].kind, now_ns)) {
			(void)snprintf(q->why, sizeof(q->why),
				       "'%s' of %s is missing, or not of its type",
				       word->members[n].name, word->word);
			return -EINVAL;
		}
	if (!is_of_kind(json_object_get(event, "ns"), TIME, now_ns)) {
		(void)snprintf(q->why, sizeof(q->why),
			       "'ns' of %s must be a time of CLOCK_MONOTONIC in the past",
			       word->word);
		return -EINVAL;
	}
	if (json_object_size(event) != n + 2) { /* "act", "ns" */
		(void)snprintf(q->why, sizeof(q->why), "%s has an unknown member", word->word);
		return -EINVAL;
	}
	return 0;
}

static int client_event_charge(struct request *q, size_t n, uint64_t now_ns)
{
	struct client *c = q->client;

	if (now_ns - c->events_since_ns >= SECOND_NS) {
		c->events_since_ns = now_ns;
		c->n_events = 0;
	}
	if (n > CLIENT_EVENTS_MAX - c->n_events) {
		(void)snprintf(q->why, sizeof(q->why),
			       "a client may report at most %u acts in a second", CLIENT_EVENTS_MAX);
		return -EAGAIN;
	}
	c->n_events += (unsigned)n;
	return 0;
}

/* Adds the client's identity. The client cannot have set these members: no word has them. */
static void client_event_emit(const struct client *c, json_t *event, const char *source)
{
	const struct word *word = find_word(source, event);
	json_t *o = json_copy(event);

	(void)json_object_update_new(o,
				     json_pack("{ss ss so sI so}", "kind", "act", "source", source,
					       "pid", pid_or_null(c->pid), "uid",
					       (json_int_t)c->uid, "comm", text_or_null(c->comm)));
	if (!json_object_get(o, "took_ns"))
		(void)json_object_set_new(o, "took_ns", json_null());
	if (word->join)
		word->join(c, o);
	event_emit(&c->tracer->collector, o);
}

int client_event_op(struct request *q)
{
	const json_t *events = json_object_get(q->json, "acts");
	const char *source = json_string_value(json_object_get(q->json, "source"));
	uint64_t now_ns = num_now_ns();
	int r = 0;

	if (!source || (strcmp(source, "nccl") != 0 && strcmp(source, "sync") != 0)) {
		(void)snprintf(q->why, sizeof(q->why), "'source' must be \"nccl\" or \"sync\"");
		return -EINVAL;
	}
	if (!json_is_array(events) || json_array_size(events) == 0) {
		(void)snprintf(q->why, sizeof(q->why), "'acts' must be an array of objects");
		return -EINVAL;
	}
	for (size_t i = 0; i < json_array_size(events) && r == 0; i++)
		r = client_event_check(q, source, json_array_get(events, i), now_ns);
	if (r == 0)
		r = client_event_charge(q, json_array_size(events), now_ns);
	for (size_t i = 0; i < json_array_size(events) && r == 0; i++)
		client_event_emit(q->client, json_array_get(events, i), source);
	return r;
}

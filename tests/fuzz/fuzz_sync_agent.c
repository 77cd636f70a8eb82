/*
 * Parses any bytes as changes to messages of peers, during two pushes, averages or reshards among
 * four agents: messages are lost, duplicated, changed or replaced. In every case a sync ends, and
 * no node serves a version that its publisher did not commit, or a shard before all are verified.
 *
 * The first two bytes choose the world. Then, for each message in turn:
 *
 *	x		it is lost
 *	2		it is delivered twice
 *	d i		without its i-th field
 *	s i v		its i-th field is the v-th of VALUES
 *	S i j v		likewise, the j-th field or element of that
 *	j text \n	it is replaced by the text
 *	other		it is unchanged
 *
 * and for each delivered plan of a reshard:
 *
 *	w i v		the i-th of its words, an i of two bytes, is the v-th of WORDS
 *	other		it is unchanged
 */
#include <endian.h>
#include <jansson.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/base/log.h"
#include "server/sync/base/json_packet.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/sim.h"
#include "tests/unit/sim_average.h"
#include "tests/unit/sim_jobs.h"
#include "tests/unit/sim_reshard.h"

#define N_NODES 4
#define N_SYNCS 2
#define SYNC_NS (3600 * SIM_SECOND) /* more than any deadline */

/* The sources and targets. */
#define SOURCES 0x7u
#define TARGETS 0xdu

struct input {
	const uint8_t *data;
	size_t size;
};

static const char *const VALUES[] = {
	"null",
	"true",
	"false",
	"0",
	"1",
	"-1",
	"2.5",
	"9223372036854775807",
	"-9223372036854775808",
	"4294967296",
	"1125899906842624",
	"\"\"",
	"\"x\"",
	"\"n0001\"",
	"\"n0003\"",
	"\"llama\"",
	"\"127.0.0.1\"",
	"\"0000000000000000\"",
	"\"0000000000000000000000000000000000000000000000000000000000000000\"",
	"[]",
	"[0]",
	"[[0,1]]",
	"[[0,67108864]]",
	"[[]]",
	"[{}]",
	"{}",
	"{\"type\":{}}",
};

static const uint64_t WORDS[] = {
	0, 1, 2, 3, 4, 64, 65, MIB, 2 * MIB, 4 * MIB, (uint64_t)1 << 50, INT64_MAX, UINT64_MAX,
};

static uint8_t take(struct input *in)
{
	if (in->size == 0)
		return 0;
	in->size--;
	return *in->data++;
}

static json_t *take_value(struct input *in)
{
	json_t *value = json_loads(VALUES[take(in) % ARRAY_LEN(VALUES)], JSON_DECODE_ANY, NULL);

	MUST(value);
	return value;
}

static json_t *take_text(struct input *in)
{
	const uint8_t *end = in->size ? memchr(in->data, '\n', in->size) : NULL;
	size_t n = end ? (size_t)(end - in->data) : in->size;
	json_t *message = json_loadb((const char *)in->data, n, JSON_REJECT_DUPLICATES, NULL);

	in->data += n + (end != NULL);
	in->size -= n + (end != NULL);
	return message;
}

/* The key of the field; NULL: there is none. */
static const char *key_at(json_t *object, unsigned i)
{
	size_t n = json_object_size(object);
	void *field = json_object_iter(object);

	for (i = n ? i % (unsigned)n : 0; i > 0; i--)
		field = json_object_iter_next(object, field);
	return field ? json_object_iter_key(field) : NULL;
}

static void set_inner(json_t *container, unsigned i, json_t *value)
{
	const char *key = key_at(container, i);
	size_t n = json_array_size(container);

	if (key)
		json_object_set(container, key, value);
	else if (n > 0)
		json_array_set(container, i % n, value);
	json_decref(value);
}

static void set_field(struct input *in, json_t *message, bool is_inner)
{
	const char *key = key_at(message, take(in));
	unsigned inner = is_inner ? take(in) : 0;
	json_t *value = take_value(in);

	if (key && is_inner)
		set_inner(json_object_get(message, key), inner, value);
	else if (key)
		json_object_set_new(message, key, value);
	else
		json_decref(value);
}

static void deliver(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	struct sim_node *n = &s->nodes[to];

	if (n->agent && json_is_object(message)) /* connection.c accepts nothing else */
		agent_on_message(n->agent, from < to ? from : from - 1, message);
}

static bool tamper(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	struct input *in = s->userdata;
	uint8_t how = take(in);
	cleanup(json_freep) json_t *other = NULL;
	const char *key;

	if (how == 'x')
		return false;
	if (how == '2')
		deliver(s, from, to, message);
	if (!how || !strchr("dsSj", how))
		return true;
	other = how == 'j' ? take_text(in) : json_deep_copy(message);
	if (how == 'd' && (key = key_at(other, take(in))))
		json_object_del(other, key);
	if (how == 's' || how == 'S')
		set_field(in, other, how == 'S');
	deliver(s, from, to, other);
	return false;
}

static void tamper_plan(struct sim *s, struct event *e)
{
	struct input *in = s->userdata;
	uint64_t text[512], word;
	ssize_t size = pread(e->fds[0], text, sizeof(text), 0);
	unsigned i;

	if (size <= 8 || memcmp(text, "moves", 5) != 0 || take(in) != 'w')
		return;
	i = take(in);
	i = (i << 8 | take(in)) % (unsigned)(size / 8);
	word = htobe64(WORDS[take(in) % ARRAY_LEN(WORDS)]);
	text[i] = word;
	(void)close(e->fds[0]);
	MUST(fd_sealed_copy("fuzz-plan", text, (size_t)size, &e->fds[0]) == 0);
}

enum what {
	PUSH,
	AVERAGE,
	RESHARD,
};

static int begin(struct sim *s, enum what what, char ret_sync[SYNC_ID_SIZE])
{
	for (unsigned i = 0; what != PUSH && i < N_NODES; i++)
		(void)sim_train(s, i, SIM_BUFFER); /* fails while a version arrives */
	if (what == RESHARD)
		return sim_reshard(s, 0, SOURCES, TARGETS, ret_sync);
	return what == AVERAGE ? sim_average(s, 0, SIM_BUFFER, ret_sync) : sim_push(s, 0, ret_sync);
}

static void play(struct sim *s, enum what what)
{
	uint64_t had[N_NODES];
	char id[SYNC_ID_SIZE];
	int r = begin(s, what, id);

	for (unsigned i = 0; i < N_NODES; i++)
		had[i] = sim_serves(s, i);
	if (r == 0) /* a peer's request may have blocked it */
		MUST(sim_run_until(s, sim_ended, SYNC_NS));
	sim_run(s, 10 * SIM_SECOND);
	for (unsigned i = 0; i < N_NODES; i++)
		MUST(sim_serves(s, i) == had[i] || sim_is_decided(s, sim_serves(s, i)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {data, size};
	uint8_t how = take(&in);
	struct sim_options options = {
		.n_nodes = N_NODES,
		.n_publishers = 2,
		.policy = (enum policy)(how % 3),
		.n_bytes = 4 * MIB,
		.n_changed = how & 4 ? MIB : 0,
		.n_patch = how & 8 ? 64 * KIB : 0,
		.seed = take(&in),
	};
	struct sim *s;

	log_init((enum log_level)0);
	s = sim_new(&options);
	s->nodes[N_NODES - 1].layout = how & 32 ? 1 : 0;
	s->on_message = tamper;
	s->on_blob = tamper_plan;
	s->userdata = &in;
	sim_run(s, SIM_SECOND);
	for (unsigned i = 0; i < N_SYNCS; i++)
		play(s, how & 64 ? RESHARD : how & 16 ? AVERAGE : PUSH);
	sim_free(s);
	return 0;
}

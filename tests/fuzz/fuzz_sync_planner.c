/*
 * Sends a planner arbitrary layouts of nodes, and an arbitrary split: it refuses with a sentence,
 * or every layout in its answers is valid, and has the planned size.
 *
 * The input is a split, a byte of 0, and draws: the numbers of sources, targets, nodes and tensors,
 * their places, and the part of each tensor in each source.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <weightd.h>

#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "ipc/reshard/reshard.h"
#include "server/sync/base/json_fields.h"
#include "server/sync/base/json_packet.h"
#include "server/sync/local/planner.h"
#include "tests/fuzz/fuzz.h"

#define RANKS 4
#define TENSORS 3
#define DIMS 4
#define N_NODES 8

struct input {
	const uint8_t *at;
	const uint8_t *end;
};

static int agent_fd; /* the agent's end of the socket */

static unsigned draw(struct input *in)
{
	return in->at < in->end ? *in->at++ : 0;
}

/* Small or huge. */
static uint64_t draw_size(struct input *in)
{
	unsigned n = draw(in);

	return n < 250 ? n % 17 : UINT64_MAX >> (n % 8 * 9);
}

/* --- Requests ---------------------------------------------------------------------------------- */

static struct weightd_layout *draw_layout(struct input *in, uint32_t n_tensors)
{
	static const char *const NAMES[] = {"a.weight", "b", "c.bias"};
	struct weightd_layout *l;

	MUST(weightd_layout_new(RESHARD_ALIGNMENT, &l) == 0);
	for (uint32_t i = 0; i < n_tensors; i++) {
		unsigned kind = draw(in);
		uint64_t shape[DIMS];

		for (unsigned k = 0; k < kind % (DIMS + 1); k++)
			shape[k] = draw_size(in);
		if (kind >= 240 && i > 0)
			(void)weightd_layout_tie(l, NAMES[i], 0, NULL);
		else /* a layout refuses a tensor without room, so that sources differ */
			(void)weightd_layout_add(l, NAMES[i],
						 (enum weightd_dtype)(1 + kind / 5 % 24),
						 kind % (DIMS + 1), shape, WEIGHTD_PARAM, NULL);
	}
	return l;
}

/* Steals `message` and the descriptor. */
static int tell(struct task *e, json_t *message, int fd, struct fault *f)
{
	struct json_packet t = {.message = message, .fds = {fd}, .n_fds = 1};
	int r = planner_handle(e, &t, f);

	MUST((r < 0) == (f->code && f->why[0]));
	json_packet_deinit(&t);
	return r;
}

static int tell_layout(struct task *e, struct input *in, uint32_t n_tensors, struct fault *f)
{
	struct weightd_layout *l = draw_layout(in, n_tensors);
	void *image = NULL;
	uint64_t size;
	int r = weightd_layout_image(l, &image, &size), fd;

	if (r == 0) {
		MUST(fd_sealed_copy("layout", image, size, &fd) == 0);
		r = tell(e, json_pack("{s:s}", "op", "layout"), fd, f);
	}
	free(image);
	weightd_layout_free(l);
	return r;
}

/* All different, as in the agent. */
static json_t *draw_nodes(struct input *in, unsigned n)
{
	unsigned how = draw(in);
	json_t *nodes = json_array();

	for (unsigned i = 0; i < n; i++)
		json_array_append_new(nodes,
				      json_integer((how + i * (how & N_NODES ? 3 : 1)) % N_NODES));
	return nodes;
}

/* --- Answers ----------------------------------------------------------------------------------- */

static void *map(const struct json_packet *t, uint64_t *ret_size)
{
	void *data;

	MUST(t->n_fds == 1 && fd_is_sealed(t->fds[0]) && fd_size(t->fds[0], ret_size) == 0);
	MUST(json_integer_value(json_object_get(t->message, "size")) == (json_int_t)*ret_size);
	data = malloc(*ret_size + 1);
	MUST(data && pread(t->fds[0], data, *ret_size, 0) == (ssize_t)*ret_size);
	return data;
}

/* Returns the bytes of its data. */
static uint64_t check_target(const struct json_packet *t, unsigned rank)
{
	struct weightd_layout *l;
	uint64_t size, n_bytes;
	void *image = map(t, &size);

	MUST(json_integer_value(json_object_get(t->message, "rank")) == rank);
	MUST(weightd_layout_parse(image, size, &l) == 0);
	n_bytes = weightd_layout_n_bytes(l);
	MUST(field_number(t->message, "n_bytes", INT64_MAX, &size) == 0 && size == n_bytes && size);
	weightd_layout_free(l);
	free(image);
	return n_bytes;
}

static void check_plan(const struct json_packet *t, const json_t *targets, const uint64_t *n_bytes)
{
	char why[MOVES_WHY_SIZE];
	struct moves m;
	uint64_t size;
	void *text = map(t, &size);

	MUST(size <= MOVES_SIZE_MAX && moves_decode(text, size, &m, why) == 0);
	for (size_t i = 0; i < json_array_size(targets); i++) {
		json_int_t node = json_integer_value(json_array_get(targets, i));

		MUST(m.nodes[node].size[MOVES_TO] == n_bytes[i]);
	}
	moves_deinit(&m);
	free(text);
}

/* Answers before a failure do not count. */
static void check_answers(const json_t *targets, bool is_planned)
{
	uint64_t n_bytes[RANKS];
	unsigned n = 0;
	struct json_packet t;

	while (json_packet_receive(agent_fd, MSG_DONTWAIT, &t) == 0) {
		MUST(n <= json_array_size(targets));
		if (n < json_array_size(targets))
			n_bytes[n] = check_target(&t, n);
		else
			check_plan(&t, targets, n_bytes);
		n++;
		json_packet_deinit(&t);
	}
	MUST(!is_planned || n == json_array_size(targets) + 1);
}

static void plan(const void *split, size_t split_size, struct input *in)
{
	struct task e = {.staging = STAGING_NONE};
	struct fault f = {0};
	unsigned n_sources = 1 + draw(in) % RANKS, n_targets = 1 + draw(in) % RANKS;
	json_t *targets = draw_nodes(in, n_targets), *sources = draw_nodes(in, n_sources);
	uint32_t n_tensors = 1 + draw(in) % TENSORS;
	int r = 0, fd;

	for (unsigned i = 0; r == 0 && i < n_sources; i++)
		r = tell_layout(&e, in, n_tensors, &f);
	if (r == 0) {
		MUST(fd_sealed_copy("split", split, split_size, &fd) == 0);
		r = tell(&e,
			 json_pack("{s:s, s:O, s:O, s:i}", "op", "plan", "sources", sources,
				   "targets", targets, "n_nodes", N_NODES),
			 fd, &f);
		check_answers(targets, r == 0);
	}
	task_end(&e);
	json_decref(sources);
	json_decref(targets);
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	int ends[2];

	(void)argc, (void)argv;
	MUST(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
	agent_fd = fcntl(ends[0], F_DUPFD_CLOEXEC, JSON_PACKET_FD + 1);
	MUST(agent_fd > JSON_PACKET_FD && dup2(ends[1], JSON_PACKET_FD) == JSON_PACKET_FD);
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *end = size ? memchr(data, '\0', size) : NULL;
	struct input in = {.at = end ? end + 1 : data + size, .end = data + size};

	plan(data, (size_t)((end ? end : data + size) - data), &in);
	return 0;
}

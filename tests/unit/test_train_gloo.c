/*
 * Gloo between nodes that are processes: bytes that arrive, peers that die, checks that end calls, nothing that is left behind
 */
#include "tests/unit/train_nodes.h"

#include <fcntl.h>
#include <linux/tcp.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "ipc/base/num.h"
#include "libclient/train/nodes/engine.h"
#include "libclient/train/plan/sentence.h"

#define MS ((uint64_t)1000000)
#define N_MAX 4
#define ROUNDS 16
#define PAGE 4096u
#define SKIPPED 77
#define NOTICED_MS 2000 /* of a loss, on a busy machine */

struct end {
	const struct engine *engine;
	void *state;
	uint32_t node, n;
	char why[ENGINE_WHY_SIZE];
};

static bool has_gloo(void)
{
	const struct engine *engine;
	int r = engine_gloo(&engine);

	if (r == 0)
		return true;
	print_message("%s\n", weightd_train_error());
	assert_int_equal(r, -EOPNOTSUPP);
	return false;
}

static int watch_meeting(void *data, bool is_interrupted)
{
	(void)is_interrupted;
	return meet_watch(data);
}

static void address_of_loopback(struct sockaddr_storage *ret)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

	memset(ret, 0, sizeof(*ret));
	memcpy(ret, &at, sizeof(at));
}

/* As a link does it. */
static void end_open(struct end *e, uint32_t node, uint32_t n)
{
	const struct meet_place place = nodes_place(node, n);
	static struct engine_hello own, all[N_MAX];
	struct meet_word words[N_MAX];
	struct sockaddr_storage address;
	struct meet *m;

	*e = (struct end){.node = node, .n = n};
	CHECK(engine_gloo(&e->engine) == 0);
	CHECK(meet_open(&place, &m) == 0);
	CHECK(meet_join(m, never_ends, NULL, &address) == 0);
	CHECK(e->engine->open(&address, node, n, &e->state, &own, e->why) == 0);
	CHECK(meet_tell(m, own.bytes, own.size, ENGINE_HELLO_MAX, never_ends, NULL, words) == 0);
	for (uint32_t i = 0; i < n; i++) {
		all[i].size = words[i].size;
		memcpy(all[i].bytes, words[i].data, words[i].size);
	}
	meet_words_free(words, n);
	if (e->engine->connect(e->state, all, watch_meeting, m, e->why) != 0) {
		fprintf(stderr, "node %u cannot connect: %s\n", node, e->why);
		_exit(1);
	}
	CHECK(meet_tell(m, NULL, 0, 0, never_ends, NULL, words) == 0);
	meet_words_free(words, n);
	meet_close(m);
}

static int end_exchange(struct end *e, uint64_t number, const struct weightd_transfer *transfers,
			uint32_t n, engine_check *check, void *data)
{
	int r = e->engine->exchange(e->state, number, transfers, n, check, data, e->why);

	if (r == -EPIPE)
		(void)train_fail(r, "%s", e->why);
	return r == -EPIPE && !e->why[0] ? -EBADMSG : r; /* a sentence is missing */
}

/* Numbers that all nodes make alike. */
static uint64_t mixed(uint64_t a, uint64_t b, uint64_t c)
{
	uint64_t x = a * 0x9e3779b97f4a7c15 + b * 0xbf58476d1ce4e5b9 + c * 0x94d049bb133111eb;

	x ^= x >> 29;
	x *= 0xbf58476d1ce4e5b9;
	return x ^ x >> 32;
}

#define SIZE_MAX_OF_ROUND (9 * MIB + 3)

static uint64_t size_of_round(uint32_t from, uint32_t to, uint64_t round)
{
	static const uint64_t sizes[] = {0,
					 1,
					 47,
					 1000,
					 MIB - 1,
					 MIB,
					 MIB + 1,
					 3 * MIB,
					 SIZE_MAX_OF_ROUND,
					 3 * MIB + 777,
					 5 * 1000,
					 2 * MIB};

	return sizes[mixed(from, to, round) % ARRAY_LEN(sizes)];
}

/* Bytes that a node sends to another one: no two places of them are alike, and no two of these. */
static const char *bytes_of(uint32_t from, uint32_t to, uint64_t round)
{
	static uint64_t all[SIZE_MAX_OF_ROUND / sizeof(uint64_t) + 512];

	for (uint64_t i = 0; !all[0] && i < ARRAY_LEN(all); i++)
		all[i] = mixed(i, 1, 1);
	return (const char *)all + (from * N_MAX + to) * ROUNDS + round;
}

/* Cuts `size` bytes into segments, some of them empty, in a way of its own for each seed. */
static uint32_t cut(char *data, uint64_t size, uint64_t seed, struct weightd_segment *ret,
		    uint32_t max)
{
	uint32_t n = 0;

	while (size && n < max - 1) {
		uint64_t part = mixed(seed, n, size) % (size / (n % 3 ? 2 : 8) + 2);

		part = part < size ? part : size;
		ret[n++] = (struct weightd_segment){data, part};
		data += part;
		size -= part;
	}
	if (size || seed % 2)
		ret[n++] = (struct weightd_segment){data, size};
	return n;
}

#define CUTS_MAX 40

struct traffic {
	char *send[N_MAX], *receive[N_MAX];
	struct weightd_segment cuts[2][N_MAX][CUTS_MAX];
	struct weightd_transfer transfers[N_MAX];
	uint32_t n;
};

static void traffic_make(struct traffic *t, const struct end *e, uint64_t round)
{
	t->n = 0;
	for (uint32_t i = 0; i < e->n; i++) {
		uint64_t sent = size_of_round(e->node, i, round),
			 received = size_of_round(i, e->node, round);

		if (i == e->node)
			continue;
		t->send[i] = malloc(sent + 1);
		t->receive[i] = calloc(1, received + 1);
		CHECK(t->send[i] && t->receive[i]);
		memcpy(t->send[i], bytes_of(e->node, i, round), sent);
		t->transfers[t->n++] = (struct weightd_transfer){
			.node = i,
			.send = t->cuts[0][i],
			.n_send = cut(t->send[i], sent, round * 2 + e->node, t->cuts[0][i], CUTS_MAX),
			.receive = t->cuts[1][i],
			.n_receive = cut(t->receive[i], received, round * 3 + e->node,
					 t->cuts[1][i], CUTS_MAX),
		};
	}
}

static void traffic_check(struct traffic *t, const struct end *e, uint64_t round)
{
	for (uint32_t i = 0; i < e->n; i++) {
		if (i == e->node)
			continue;
		CHECK(memcmp(t->receive[i], bytes_of(i, e->node, round),
			     size_of_round(i, e->node, round)) == 0);
		free(t->send[i]);
		free(t->receive[i]);
	}
}

static uint32_t n_nodes; /* of the test that runs */

static void exchange_rounds(uint32_t node)
{
	static struct traffic t;
	struct end e;

	end_open(&e, node, n_nodes);
	for (uint64_t round = 0; round < ROUNDS; round++) {
		traffic_make(&t, &e, round);
		CHECK(end_exchange(&e, round, t.transfers, t.n, never_ends, NULL) == 0);
		traffic_check(&t, &e, round);
	}
	e.engine->close(e.state);
}

static void bytes_arrive_however_both_ends_cut_them(void **state)
{
	(void)state;
	if (!has_gloo())
		skip();
	for (n_nodes = 2; n_nodes <= N_MAX; n_nodes++)
		nodes_run(n_nodes, exchange_rounds);
}

/* Bytes that the kernel has received on all connections of this process. */
static uint64_t count_received(void)
{
	uint64_t n = 0;

	for (int fd = 3; fd < 64; fd++) {
		struct tcp_info info = {};
		socklen_t size = sizeof(info);

		if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0)
			n += info.tcpi_bytes_received;
	}
	return n;
}

static void count_bytes(uint32_t node)
{
	const uint64_t sizes[2] = {64 * MIB, 10 * MIB + 5}; /* that nodes 0 and 1 send */
	char *memory = malloc(sizes[0] + sizes[1]);
	const struct weightd_segment send = {memory, sizes[node]},
				     receive = {memory + sizes[node], sizes[1 - node]};
	const struct weightd_transfer both = {1 - node, &send, 1, &receive, 1};
	struct end e;
	uint64_t planned;

	CHECK(memory);
	memset(memory, (int)node + 1, sizes[0] + sizes[1]);
	end_open(&e, node, 2);
	CHECK(end_exchange(&e, 0, &both, 1, never_ends, NULL) == 0);
	for (uint64_t i = 0; i < receive.size; i += 997)
		CHECK(memory[sizes[node] + i] == (char)(2 - node));
	planned = e.engine->wire_connect + e.engine->count_wire(sizes[1 - node], sizes[node]);
	if (count_received() != planned) {
		fprintf(stderr, "node %u received %llu bytes, and not %llu\n", node,
			(unsigned long long)count_received(), (unsigned long long)planned);
		_exit(1);
	}
	/* It would close the connections of the other one. */
	nodes->words[node] = 1;
	while (!nodes->words[1 - node])
		(void)usleep(1000);
	e.engine->close(e.state);
	free(memory);
}

static void the_kernel_counts_the_bytes_that_are_planned(void **state)
{
	(void)state;
	if (!has_gloo())
		skip();
	nodes_run(2, count_bytes);
}

/* 64 GiB in little memory: they take longer than a tick. */
#define LONG_PARTS 1024
static struct weightd_segment long_parts[LONG_PARTS];

static struct weightd_transfer long_transfer(uint32_t peer)
{
	static char *memory;

	if (!memory)
		memory = malloc(64 * MIB);
	CHECK(memory);
	for (uint32_t i = 0; i < LONG_PARTS; i++)
		long_parts[i] = (struct weightd_segment){memory, 64 * MIB};
	return (struct weightd_transfer){peer, long_parts, LONG_PARTS, long_parts, LONG_PARTS};
}

static int kills_itself(void *data, bool is_interrupted)
{
	(void)data;
	(void)is_interrupted;
	nodes->words[0] = num_now_ns();
	return raise(SIGKILL);
}

static void loses_its_peer(uint32_t node)
{
	const struct weightd_transfer whole = long_transfer(1 - node);
	struct end e;

	end_open(&e, node, 2);
	CHECK(end_exchange(&e, 0, &whole, 1, node == 1 ? kills_itself : never_ends, NULL) == -EPIPE);
	CHECK(num_now_ns() - nodes->words[0] < NOTICED_MS * MS);
	CHECK(strncmp(e.why, "node 1: ", 8) == 0);
	e.engine->close(e.state);
}

static void a_peer_that_is_killed_amid_a_transfer_is_noticed_at_once(void **state)
{
	(void)state;
	if (!has_gloo())
		skip();
	nodes_fork(0, loses_its_peer);
	nodes_fork(1, loses_its_peer);
	assert_int_equal(nodes_wait(1), SIGKILL);
	assert_int_equal(nodes_wait(0), 0);
}

static bool sockets_are_closed_by_exec(void)
{
	for (int fd = 3; fd < 64; fd++) {
		struct tcp_info info;
		socklen_t size = sizeof(info);

		if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 &&
		    fcntl(fd, F_GETFD) != FD_CLOEXEC)
			return false;
	}
	return true;
}

/* Its child lives on. */
static void leaves_a_child(uint32_t node)
{
	const struct weightd_transfer whole = long_transfer(1 - node);
	struct end e;

	end_open(&e, node, 2);
	CHECK(sockets_are_closed_by_exec());
	if (node == 1 && fork() == 0) {
		while (!nodes->words[1] && kill(nodes->test, 0) == 0)
			(void)usleep(1000);
		_exit(0);
	}
	CHECK(end_exchange(&e, 0, &whole, 1, node == 1 ? kills_itself : never_ends, NULL) == -EPIPE);
	CHECK(num_now_ns() - nodes->words[0] < NOTICED_MS * MS);
	nodes->words[1] = 1;
	e.engine->close(e.state);
}

static void a_child_of_a_peer_that_is_killed_does_not_keep_its_connections(void **state)
{
	(void)state;
	if (!has_gloo())
		skip();
	nodes_fork(0, leaves_a_child);
	nodes_fork(1, leaves_a_child);
	assert_int_equal(nodes_wait(1), SIGKILL);
	assert_int_equal(nodes_wait(0), 0);
}

/* In a mount namespace of its own, as in a chroot. */
static void hide_proc(void)
{
	CHECK(unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
	      mount("none", "/proc", "tmpfs", 0, NULL) == 0);
}

/* The search for leaks reads it. */
static void show_proc(void)
{
	CHECK(umount("/proc") == 0);
}

static void leaves_a_child_without_proc(uint32_t node)
{
	hide_proc();
	leaves_a_child(node);
	show_proc();
}

static void nor_does_it_where_there_is_no_proc(void **state)
{
	(void)state;
	if (!has_gloo())
		skip();
	if (geteuid() != 0) {
		print_message("only root can hide /proc\n");
		skip();
	}
	nodes_fork(0, leaves_a_child_without_proc);
	nodes_fork(1, leaves_a_child_without_proc);
	assert_int_equal(nodes_wait(1), SIGKILL);
	assert_int_equal(nodes_wait(0), 0);
}

/* Between open() and connect(). */
static bool has_listener(void)
{
	for (int fd = 3; fd < 256; fd++) {
		int listens = 0;
		socklen_t size = sizeof(listens);

		if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens)
			return true;
	}
	return false;
}

static void opens_and_forks(uint32_t node)
{
	struct sockaddr_storage address;
	struct engine_hello hello;
	struct end e = {.n = 2};
	int status;
	pid_t pid;

	(void)node;
	address_of_loopback(&address);
	CHECK(engine_gloo(&e.engine) == 0);
	CHECK(e.engine->open(&address, 0, 2, &e.state, &hello, e.why) == 0);
	CHECK(has_listener());
	pid = fork();
	if (pid == 0)
		_exit(has_listener());
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	e.engine->close(e.state);
}

static void opens_and_forks_without_proc(uint32_t node)
{
	hide_proc();
	opens_and_forks(node);
	show_proc();
}

static void children_listen_nowhere(void **state)
{
	(void)state;
	if (!has_gloo())
		skip();
	nodes_fork(0, opens_and_forks);
	assert_int_equal(nodes_wait(0), 0);
	if (geteuid() != 0)
		return;
	nodes_fork(0, opens_and_forks_without_proc);
	assert_int_equal(nodes_wait(0), 0);
}

static int says_no(void *data, bool is_interrupted)
{
	struct end *e = data;

	(void)is_interrupted;
	CHECK(e->engine->missing(e->state) == 1 - e->node);
	return train_fail(-ECANCELED, "no");
}

static void is_interrupted_by_a_check(uint32_t node)
{
	const struct weightd_transfer whole = long_transfer(1 - node);
	struct end e;
	int r;

	end_open(&e, node, 2);
	r = end_exchange(&e, 0, &whole, 1, node == 1 ? says_no : never_ends, &e);
	CHECK(r == (node == 1 ? -ECANCELED : -EPIPE));
	if (node == 1)
		CHECK(strcmp(weightd_train_error(), "no") == 0 && e.why[0] == '\0');
	/* Nothing moves any more. */
	memset(long_parts[0].data, 17, long_parts[0].size);
	for (uint64_t i = 0; i < long_parts[0].size; i++)
		CHECK(((char *)long_parts[0].data)[i] == 17);
	e.engine->close(e.state);
}

static void a_check_ends_a_transfer_and_its_connection(void **state)
{
	(void)state;
	if (!has_gloo())
		skip();
	nodes_run(2, is_interrupted_by_a_check);
}

static void ignore_signal(int signal)
{
	(void)signal;
}

static int expects_a_signal(void *data, bool is_interrupted)
{
	(void)data;
	nodes->words[0] = 1;
	return is_interrupted ? -EINTR : 0;
}

static void is_interrupted_by_a_signal(uint32_t node)
{
	const struct sigaction none = {.sa_handler = ignore_signal, .sa_flags = SA_RESTART};
	struct end e;

	CHECK(sigaction(SIGUSR1, &none, NULL) == 0);
	end_open(&e, node, 2);
	if (node == 0) {
		const struct weightd_transfer whole = long_transfer(1);

		CHECK(end_exchange(&e, 0, &whole, 1, expects_a_signal, NULL) == -EINTR);
		nodes->words[1] = 1;
	}
	/* Until one finds it asleep. */
	while (!nodes->words[1])
		if (nodes->words[0])
			CHECK(kill(nodes->pids[0], SIGUSR1) == 0);
	e.engine->close(e.state);
}

static void a_signal_calls_the_check(void **state)
{
	(void)state;
	if (!has_gloo())
		skip();
	nodes_run(2, is_interrupted_by_a_signal);
}

static int gives_up_later(void *data, bool is_interrupted)
{
	int *n = data;

	(void)is_interrupted;
	return ++*n < 3 ? 0 : train_fail(-ETIMEDOUT, "it is too late");
}

static void disagrees_about_a_size(uint32_t node)
{
	static char memory[100];
	const struct weightd_segment send = {memory, 50 + node}, receive = {memory, 50};
	const struct weightd_transfer both = {1 - node, &send, 1, &receive, 1};
	struct end e;
	int n = 0, r;

	end_open(&e, node, 2);
	r = end_exchange(&e, 0, &both, 1, gives_up_later, &n);
	CHECK(r == -ETIMEDOUT || r == -EPIPE);
	e.engine->close(e.state);
}

static void ends_that_disagree_about_a_size_wait_for_the_check(void **state)
{
	(void)state;
	if (!has_gloo())
		skip();
	nodes_run(2, disagrees_about_a_size);
}

/* Node 0 has nothing more to do while the others still exchange. */
static void leaves_first(uint32_t node)
{
	const uint32_t n = 3;
	struct weightd_transfer transfers[N_MAX];
	struct weightd_segment few;
	uint32_t n_transfers = 0;
	struct end e;

	end_open(&e, node, n);
	(void)long_transfer(node);
	few = (struct weightd_segment){long_parts[0].data, 1};
	for (uint32_t i = 0; i < n; i++) {
		const struct weightd_segment *part = node && i ? &long_parts[0] : &few;

		if (i != node)
			transfers[n_transfers++] = (struct weightd_transfer){i, part, 1, part, 1};
	}
	CHECK(end_exchange(&e, 0, transfers, n_transfers, never_ends, NULL) == 0);
	e.engine->close(e.state);
}

static void a_peer_may_leave_after_its_last_transfer(void **state)
{
	(void)state;
	if (!has_gloo())
		skip();
	nodes_run(3, leaves_first);
}

#define STOPPED_MS 200
#define BUSY 3

struct thread_use {
	int tid;
	uint64_t ns; /* for which it has used a processor, or waited for one */
};

#define THREADS_MAX 16

/* Returns the number of threads that the parent has. */
static uint32_t threads_look(struct thread_use ret[THREADS_MAX])
{
	const struct dirent *entry;
	char path[80];
	DIR *folder;
	uint32_t n = 0;

	(void)snprintf(path, sizeof(path), "/proc/%d/task", getppid());
	folder = opendir(path);
	CHECK(folder);
	while ((entry = readdir(folder))) {
		unsigned long long ran = 0, waited = 0;
		FILE *file;

		if (entry->d_name[0] == '.')
			continue;
		(void)snprintf(path, sizeof(path), "/proc/%d/task/%.16s/schedstat", getppid(),
			       entry->d_name);
		file = fopen(path, "r");
		CHECK(n < THREADS_MAX && file && fscanf(file, "%llu %llu", &ran, &waited) == 2);
		(void)fclose(file);
		ret[n++] = (struct thread_use){atoi(entry->d_name), ran + waited};
	}
	(void)closedir(folder);
	return n;
}

/* Nanoseconds of the busiest thread since. */
static uint64_t busiest_since(const struct thread_use before[THREADS_MAX], uint32_t n)
{
	struct thread_use after[THREADS_MAX];
	uint32_t n_after = threads_look(after);
	uint64_t max = 0;

	for (uint32_t i = 0; i < n_after; i++)
		for (uint32_t j = 0; j < n; j++)
			if (after[i].tid == before[j].tid && after[i].ns - before[j].ns > max)
				max = after[i].ns - before[j].ns;
	return max;
}

static char *absent; /* a page that stops threads that read it */
static int absent_fd; /* of userfaultfd(2) */

/* False: this user may not. */
static bool absent_make(void)
{
	struct uffdio_api api = {.api = UFFD_API};
	struct uffdio_register area = {.mode = UFFDIO_REGISTER_MODE_MISSING};

	absent_fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
	if (absent_fd < 0)
		return false;
	absent = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(absent != MAP_FAILED);
	area.range = (struct uffdio_range){(uintptr_t)absent, PAGE};
	return ioctl(absent_fd, UFFDIO_API, &api) == 0 &&
	       ioctl(absent_fd, UFFDIO_REGISTER, &area) == 0;
}

/*
 * Fills the parent's page a while after a thread there has asked for it. A process, as this program has no threads of its
 * own. Ends with BUSY if a thread of the parent was busy for most of that while.
 */
static void fill_late(void)
{
	struct uffdio_zeropage fill = {.range = {(uintptr_t)absent, PAGE}};
	struct pollfd fault = {.fd = absent_fd, .events = POLLIN};
	struct thread_use before[THREADS_MAX];
	uint64_t began, took, busy;
	uint32_t n;

	CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
	CHECK(poll(&fault, 1, -1) == 1);
	n = threads_look(before);
	began = num_now_ns();
	CHECK(poll(NULL, 0, STOPPED_MS) == 0); /* the page is late */
	took = num_now_ns() - began;
	busy = busiest_since(before, n);
	CHECK(ioctl(absent_fd, UFFDIO_ZEROPAGE, &fill) == 0);
	_exit(busy > took / 4 * 3 ? BUSY : 0);
}

/* Chunks of node 1 lie at the socket of node 0 when that begins to send its second one. */
static void is_stopped_in_a_call(uint32_t node)
{
	char *memory = calloc(4, MIB);
	const struct weightd_segment some = {memory, MIB};
	struct weightd_segment send[2] = {some, {memory, PAGE}},
			       receive[2] = {some, {memory + MIB, PAGE}};
	const struct weightd_transfer both = {1 - node, send, 2, receive, 2};
	pid_t fills = 0;
	int status = 0;
	struct end e;

	CHECK(memory);
	receive[0].data = memory + 2 * MIB;
	end_open(&e, node, 2);
	if (node == 0) {
		if (!absent_make())
			_exit(SKIPPED);
		send[1].data = absent;
		fills = fork();
		CHECK(fills >= 0);
		if (fills == 0)
			fill_late();
	}
	CHECK(end_exchange(&e, 0, &both, 1, never_ends, NULL) == 0);
	if (node == 0)
		CHECK(waitpid(fills, &status, 0) == fills);
	CHECK(status == 0);
	e.engine->close(e.state);
	free(memory);
}

static void threads_sleep_while_one_is_stopped_in_a_call(void **state)
{
	int status = 0;

	(void)state;
	if (!has_gloo())
		skip();
	/* The chunks of the peer do not always lie there in time. */
	for (uint32_t i = 0; !status && i < 5; i++) {
		nodes_fork(0, is_stopped_in_a_call);
		nodes_fork(1, is_stopped_in_a_call);
		status = nodes_wait(0);
		(void)nodes_wait(1);
	}
	if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED) {
		print_message("userfaultfd(2) is not allowed\n");
		skip();
	}
	assert_int_equal(status, 0);
}

static void connects_to_nobody(uint32_t node)
{
	struct sockaddr_storage address;
	static struct engine_hello hellos[2];
	char why[ENGINE_WHY_SIZE];
	const struct engine *engine;
	void *states[2];
	int n = 0, r;

	(void)node;
	address_of_loopback(&address);
	CHECK(engine_gloo(&engine) == 0);
	for (uint32_t i = 0; i < 2; i++)
		CHECK(engine->open(&address, i, 2, &states[i], &hellos[i], why) == 0);
	/* Connects at once, or waits to be connected to. */
	r = engine->connect(states[0], hellos, gives_up_later, &n, why);
	CHECK(r == 0 || r == -ETIMEDOUT);
	engine->close(states[1]);
	engine->close(states[0]);
	/* Ends of which the other one has closed its socket already. */
	for (uint32_t i = 0; i < 2; i++)
		CHECK(engine->open(&address, i, 2, &states[i], &hellos[i], why) == 0);
	engine->close(states[1]);
	n = 0;
	r = engine->connect(states[0], hellos, gives_up_later, &n, why);
	CHECK(r == -ETIMEDOUT || (r == -EPIPE && strncmp(why, "node 1: ", 8) == 0));
	engine->close(states[0]);
	engine->close(NULL);
}

static void a_check_ends_a_connection_that_nobody_makes(void **state)
{
	(void)state;
	if (!has_gloo())
		skip();
	nodes_run(1, connects_to_nobody);
}

#define RECONNECTS 10

static void reconnects(uint32_t node)
{
	uint32_t n_fds = 0, n_threads = 0;

	for (uint32_t i = 0; i < RECONNECTS; i++) {
		static struct traffic t;
		struct end e;
		int n = 0;

		end_open(&e, node, 3);
		traffic_make(&t, &e, i);
		CHECK(end_exchange(&e, i, t.transfers, t.n, never_ends, NULL) == 0);
		traffic_check(&t, &e, i);
		/* Every other one is closed amid a transfer. */
		if (i % 2) {
			const struct weightd_transfer whole = long_transfer((node + 1) % 3);

			CHECK(end_exchange(&e, RECONNECTS, &whole, 1, gives_up_later, &n) < 0);
		}
		e.engine->close(e.state);
		if (i == 1) {
			n_fds = count_entries("/proc/self/fd");
			n_threads = count_entries("/proc/self/task");
		}
	}
	CHECK(count_entries("/proc/self/fd") == n_fds);
	CHECK(count_entries("/proc/self/task") == n_threads);
}

static void connections_leave_no_descriptor_and_no_thread(void **state)
{
	(void)state;
	if (!has_gloo())
		skip();
	nodes_run(3, reconnects);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, nodes_setup, nodes_teardown)
	const struct CMUnitTest tests[] = {
		TEST(bytes_arrive_however_both_ends_cut_them),
		TEST(the_kernel_counts_the_bytes_that_are_planned),
		TEST(a_peer_that_is_killed_amid_a_transfer_is_noticed_at_once),
		TEST(a_child_of_a_peer_that_is_killed_does_not_keep_its_connections),
		TEST(nor_does_it_where_there_is_no_proc),
		TEST(children_listen_nowhere),
		TEST(a_check_ends_a_transfer_and_its_connection),
		TEST(a_signal_calls_the_check),
		TEST(ends_that_disagree_about_a_size_wait_for_the_check),
		TEST(a_peer_may_leave_after_its_last_transfer),
		TEST(threads_sleep_while_one_is_stopped_in_a_call),
		TEST(a_check_ends_a_connection_that_nobody_makes),
		TEST(connections_leave_no_descriptor_and_no_thread),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

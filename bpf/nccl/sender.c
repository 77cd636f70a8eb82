/*
 * Reads the records of callbacks ten times a second while there are any, and once a second otherwise. weightd-trace
 * gets one request at a time, and the next report is made after the answer: only calls of NCCL wait, of which a
 * hundred a second are reported one by one.
 */
#include "bpf/nccl/sender.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "bpf/nccl/link.h"
#include "bpf/nccl/report.h"
#include "bpf/nccl/ring.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"

#define MS ((uint64_t)1000000)
#define LOOK_NS (100 * MS)
#define IDLE_NS (1000 * MS)
#define SUMS_NS (1000 * MS) /* between two reports of sums */
#define QUIET_NS (500 * MS) /* a call is over if the network reported nothing for so long */
#define FAREWELL_NS (500 * MS)
#define REFUSED_NS (5000 * MS) /* after a refusal no report is sent for so long */
#define STACK_SIZE (256 * 1024)

#define TASKS_A_SECOND 100
#define N_TASKS 512 /* that wait for a report */
#define BATCH_SIZE 3900 /* bytes of a request's packet, which weightd-trace bounds */
#define BATCH_MAX 16 /* sums and communicators in one */

enum request {
	REQUEST_WATCH,
	REQUEST_BEGIN,
	REQUEST_TAG,
	REQUEST_REPORT,
	REQUEST_END,
	REQUEST_FORGET,
};

struct reported_comm {
	struct comm_sums sums, reported;
	uint64_t reported_ns;
	uint64_t opened; /* connections on which it was reported, and its span begun */
	uint64_t begun;
	uint64_t ended;
	bool is_closing; /* closed before the ring was read */
	bool is_closed_reported;
};

struct batch {
	uint64_t n_tasks, lost;
	unsigned n_sums, n_comms;
	struct {
		unsigned i;
		uint64_t n;
	} sums[BATCH_MAX];
	struct {
		unsigned place;
		bool is_closed;
		struct comm_sums sums;
	} comms[BATCH_MAX];
};

struct sender {
	struct link link;
	uint64_t link_reported; /* number of the connection on which it was first used for a report */
	uint64_t link_watched; /* the same of the connection on which it was watched */
	bool watches;
	struct sums sums;
	struct reported_comm comms[N_COMMS];
	struct slot *tasks[N_TASKS]; /* the oldest first */
	unsigned n_tasks;
	enum request asked;
	unsigned asked_comm;
	uint64_t asked_cookie;
	struct batch batch;
	uint64_t now_ns;
	uint64_t read_ns; /* when something was in the ring last */
	uint64_t round_ns; /* sums that were reported before this are due again */
	uint64_t report_ns; /* not before */
	uint64_t tokens_ns; /* calls that may be reported one by one */
	uint64_t lost, lost_reported,
		lost_reported_ns; /* records that callbacks had no room for are not in it */
	bool is_leaving;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects `stops` */
static pthread_cond_t wakes = PTHREAD_COND_INITIALIZER;
static pthread_t thread;
static bool runs, stops;
static _Atomic bool is_idle;

void sender_wake(void)
{
	(void)pthread_cond_signal(&wakes);
}

void sender_wake_if_idle(void)
{
	if (atomic_load_explicit(&is_idle, memory_order_relaxed) &&
	    atomic_exchange_explicit(&is_idle, false, memory_order_relaxed))
		sender_wake();
}

/* --- Records of callbacks --------------------------------------------------------------------- */

static void drop_task(struct sender *t, struct slot *task)
{
	t->comms[slot_get(task->comm)].sums.unreported++;
	slot_free(task);
}

static bool may_report_one(struct sender *t)
{
	uint64_t each_ns = 1000 * MS / TASKS_A_SECOND, floor_ns = t->now_ns - 1000 * MS;

	if (t->tokens_ns < floor_ns)
		t->tokens_ns = floor_ns;
	if (t->tokens_ns + each_ns > t->now_ns)
		return false;
	t->tokens_ns += each_ns;
	return true;
}

static void take_task(struct sender *t, struct slot *task)
{
	struct reported_comm *c = &t->comms[slot_get(task->comm)];

	if (task->has_seq)
		c->sums.colls++;
	else
		c->sums.p2ps++;
	if (t->link.fd < 0 || t->n_tasks == N_TASKS || !may_report_one(t))
		drop_task(t, task);
	else
		t->tasks[t->n_tasks++] = task;
}

static void read_ring(struct sender *t)
{
	struct record r;

	while (ring_read(&r)) {
		t->read_ns = t->now_ns;
		if (r.kind == RECORD_TASK)
			take_task(t, r.task);
		else
			sums_add(&t->sums, &r);
	}
	t->lost = ring_lost() + slot_lost() + t->sums.lost;
}

/* Drops the records of a sender that ended, or of a time without one. */
static void discard_ring(void)
{
	struct record r;

	while (ring_read(&r))
		if (r.kind == RECORD_TASK)
			slot_free(r.task);
}

/* --- Reports ---------------------------------------------------------------------------------- */

static bool sender_append(struct text *t, const struct text *report)
{
	if (report->is_full || t->n + report->n > BATCH_SIZE)
		return false;
	text_add(t, "%s%s", t->s[t->n - 1] == '[' ? "" : ",", report->s);
	return true;
}

static bool are_equal(const struct comm_sums *a, const struct comm_sums *b)
{
	return a->colls == b->colls && a->p2ps == b->p2ps && a->unreported == b->unreported;
}

static bool has_tasks_of(const struct sender *t, unsigned place)
{
	for (unsigned i = 0; i < t->n_tasks; i++)
		if (slot_get(t->tasks[i]->comm) == place)
			return true;
	return false;
}

/* A communicator that is closing is reported after all its calls. */
static bool has_comm_to_report(struct sender *t, unsigned place)
{
	const struct reported_comm *c = &t->comms[place];

	if (comm_state(&comms[place]) == COMM_FREE)
		return false;
	if (c->opened != t->link.number)
		return true;
	if (c->is_closing)
		return !c->is_closed_reported && !has_tasks_of(t, place) &&
		       !sums_next_unreported(&t->sums, 0, (int)place, UINT64_MAX);
	return c->reported_ns < t->round_ns && !are_equal(&c->sums, &c->reported);
}

static bool report_comms(struct sender *t, struct text *text)
{
	struct batch *b = &t->batch;
	struct text report;
	bool is_closed;

	for (unsigned i = 0; i < comm_limit() && b->n_comms < BATCH_MAX; i++) {
		struct reported_comm *c = &t->comms[i];

		if (!has_comm_to_report(t, i))
			continue;
		is_closed = c->opened == t->link.number && c->is_closing;
		report_of_comm(&report, &comms[i], &c->sums, is_closed, t->now_ns);
		if (!sender_append(text, &report))
			return false;
		b->comms[b->n_comms].place = i;
		b->comms[b->n_comms].is_closed = is_closed;
		b->comms[b->n_comms++].sums = c->sums;
	}
	return true;
}

static bool is_over(const struct sender *t, const struct slot *task)
{
	uint64_t ended_ns = slot_get(task->ended_ns);
	uint64_t last_ns = ended_ns > task->stopped_ns ? ended_ns : task->stopped_ns;
	uint32_t comm = slot_get(task->comm);

	return t->is_leaving || t->comms[comm].is_closing ||
	       (!slot_is_held(task) && t->now_ns > last_ns + QUIET_NS);
}

static bool report_tasks(struct sender *t, struct text *text)
{
	unsigned n_left = 0;
	bool has_room = true;
	struct text report;

	for (unsigned i = 0; i < t->n_tasks; i++) {
		struct slot *task = t->tasks[i];

		if (has_room && is_over(t, task)) {
			report_of_task(&report, &comms[slot_get(task->comm)], task);
			has_room = sender_append(text, &report);
			if (has_room) {
				slot_free(task);
				t->batch.n_tasks++;
				continue;
			}
		}
		t->tasks[n_left++] = task;
	}
	t->n_tasks = n_left;
	return has_room;
}

static bool report_sums_of(struct sender *t, struct text *text, int comm, uint64_t reported_ns)
{
	struct batch *b = &t->batch;
	unsigned from = 0;
	struct sum *sum;
	struct text report;

	while (b->n_sums < BATCH_MAX &&
	       (sum = sums_next_unreported(&t->sums, from, comm, reported_ns))) {
		report_of_sum(&report, &comms[sum->comm], sum);
		if (!sender_append(text, &report))
			return false;
		b->sums[b->n_sums].i = (unsigned)(sum - t->sums.of);
		b->sums[b->n_sums++].n = sum->n;
		from = (unsigned)(sum - t->sums.of) + 1;
	}
	return true;
}

/* Communicators that are closing, now; all others, once a round. */
static bool report_sums(struct sender *t, struct text *text)
{
	for (unsigned i = 0; i < comm_limit() && t->batch.n_sums == 0; i++)
		if (t->comms[i].is_closing && !report_sums_of(t, text, (int)i, UINT64_MAX))
			return false;
	if (t->batch.n_sums > 0)
		return true;
	return report_sums_of(t, text, -1, t->is_leaving ? UINT64_MAX : t->round_ns);
}

static bool report_gap(struct sender *t, struct text *text)
{
	struct text report;

	if (t->lost == t->lost_reported)
		return true;
	report_of_gap(&report, t->lost - t->lost_reported, t->lost_reported_ns, t->now_ns);
	if (!sender_append(text, &report))
		return false;
	t->batch.lost = t->lost;
	return true;
}

static bool sender_ask(struct sender *t, enum request request, const struct text *text, int fd)
{
	t->asked = request;
	return link_ask(&t->link, text, fd);
}

/* False: there is nothing, or it could not be asked. */
static bool sender_report(struct sender *t)
{
	struct text text;
	size_t empty;

	if (t->link_reported != t->link.number) {
		t->link_reported = t->link.number;
		t->report_ns = 0;
		sums_forget_reported(&t->sums);
		for (unsigned i = 0; i < comm_limit(); i++)
			t->comms[i].is_closed_reported = false;
	}
	if (t->now_ns < t->report_ns)
		return false;
	if (t->now_ns >= t->round_ns + SUMS_NS)
		t->round_ns = t->now_ns;
	t->batch = (struct batch){.lost = t->lost_reported};
	text_begin(&text);
	text_add(&text, "{\"op\":\"tell\",\"source\":\"nccl\",\"acts\":[");
	empty = text.n;
	(void)(report_gap(t, &text) && report_tasks(t, &text) && report_comms(t, &text) &&
	       report_sums(t, &text));
	if (text.n == empty)
		return false;
	text_add(&text, "]}");
	return sender_ask(t, REQUEST_REPORT, &text, -1);
}

static void take_answer_to_report(struct sender *t, bool is_taken)
{
	const struct batch *b = &t->batch;

	if (!is_taken) {
		t->report_ns = t->now_ns + REFUSED_NS;
		t->sums.lost += b->n_tasks;
		return;
	}
	if (b->lost != t->lost_reported) {
		t->lost_reported = b->lost;
		t->lost_reported_ns = t->now_ns;
	}
	for (unsigned i = 0; i < b->n_sums; i++) {
		struct sum *sum = &t->sums.of[b->sums[i].i];

		sum->n_reported = b->sums[i].n;
		sum->reported_ns = t->now_ns;
	}
	for (unsigned i = 0; i < b->n_comms; i++) {
		struct reported_comm *c = &t->comms[b->comms[i].place];

		c->opened = t->link.number;
		c->reported = b->comms[i].sums;
		c->reported_ns = t->now_ns;
		c->is_closed_reported = b->comms[i].is_closed;
	}
}

/* --- Tags and watches ------------------------------------------------------------------------- */

static void request_begin(struct text *text, const char *op, const char *sync)
{
	text_begin(text);
	text_add(text, "{\"op\":\"%s\"", op);
	text_string(text, "sync", sync);
}

/* The descriptor, made another: it may be closed, and its number be another socket's, before this one is passed on. */
static int open_socket(const struct sum *sum)
{
	cleanup(fd_closep) int fd = fcntl(sum->fd, F_DUPFD_CLOEXEC, 3);
	socklen_t size = sizeof(uint64_t);
	uint64_t cookie;

	if (fd < 0 || getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size) < 0 ||
	    cookie != sum->number)
		return -1;
	return take_fd(fd);
}

static bool sender_tag(struct sender *t, const struct sum *sum)
{
	const struct comm *c = &comms[sum->comm];
	cleanup(fd_closep) int fd = open_socket(sum);
	struct text text;
	char peer[32] = "an unknown rank";

	t->asked_cookie = sum->number;
	if (fd < 0) {
		sums_set_tagged(&t->sums, sum->number, t->link.number, true);
		return false;
	}
	if (sum->peer >= 0)
		(void)snprintf(peer, sizeof(peer), "rank %d", sum->peer);
	request_begin(&text, "tag", c->label);
	/* The sending end of NCCL's sockets dialled. */
	text_add(&text,
		 ",\"version\":0,\"peer\":\"%s\",\"role\":\"payload\",\"transport\":\"nccl\",\"dialled\":%s}",
		 peer, sum->is_send ? "true" : "false");
	return sender_ask(t, REQUEST_TAG, &text, fd);
}

/*
 * All sockets of this process, if the user wants that: NCCL is usually built without events of its network, and
 * reports none of its sockets then.
 */
static bool sender_watch(struct sender *t)
{
	struct text text;

	if (!t->watches || t->link_watched == t->link.number)
		return false;
	t->link_watched = t->link.number;
	request_begin(&text, "watch", "nccl");
	text_add(&text, ",\"version\":0,\"peer\":\"any rank\",\"role\":\"payload\",\"pid\":%d}",
		 (int)getpid());
	return sender_ask(t, REQUEST_WATCH, &text, -1);
}

static bool tag_next(struct sender *t)
{
	struct text text;
	struct sum *sum;

	while (t->link.fd >= 0 && (sum = sums_next_untagged(&t->sums, t->link.number))) {
		t->asked_comm = sum->comm;
		if (t->comms[sum->comm].begun == t->link.number) {
			if (sender_tag(t, sum))
				return true;
			continue;
		}
		request_begin(&text, "begin", comms[sum->comm].label);
		text_add(&text, "}");
		return sender_ask(t, REQUEST_BEGIN, &text, -1);
	}
	return false;
}

/* --- Ends ------------------------------------------------------------------------------------- */

static void free_comm(struct sender *t, unsigned place)
{
	unsigned n_left = 0;

	for (unsigned i = 0; i < t->n_tasks; i++) {
		if (slot_get(t->tasks[i]->comm) == place)
			slot_free(t->tasks[i]);
		else
			t->tasks[n_left++] = t->tasks[i];
	}
	t->n_tasks = n_left;
	sums_drop(&t->sums, (uint16_t)place);
	memset(&t->comms[place], 0, sizeof(t->comms[place]));
	slot_free_of(place);
	comm_free(&comms[place]);
}

/* Before the ring is read: all of them is in it then. */
static void see_closed(struct sender *t)
{
	for (unsigned i = 0; i < comm_limit(); i++)
		if (comm_state(&comms[i]) == COMM_CLOSED)
			t->comms[i].is_closing = true;
}

/* Its span is ended, so that its totals are kept, and its rows go. False: there is nothing to be asked. */
static bool part_next(struct sender *t)
{
	struct text text;

	for (unsigned i = 0; i < comm_limit(); i++) {
		struct reported_comm *c = &t->comms[i];
		bool has_rows = c->begun == t->link.number && t->link.fd >= 0;

		if (!c->is_closing)
			continue;
		if (!has_rows) {
			free_comm(t, i);
			continue;
		}
		t->asked_comm = i;
		request_begin(&text, c->ended == t->link.number ? "forget" : "end", comms[i].label);
		text_add(&text, "}");
		return sender_ask(t, c->ended == t->link.number ? REQUEST_FORGET : REQUEST_END,
				  &text, -1);
	}
	return false;
}

static void take_answer(struct sender *t, bool is_taken)
{
	struct reported_comm *c = &t->comms[t->asked_comm];

	switch (t->asked) {
	case REQUEST_WATCH:
		break; /* refused where weightd-trace counts without BPF: nothing is watched then */
	case REQUEST_BEGIN:
		c->begun = t->link.number; /* or there is no room for its span, and its sockets are counted all the same */
		break;
	case REQUEST_TAG:
		sums_set_tagged(&t->sums, t->asked_cookie, t->link.number, !is_taken);
		break;
	case REQUEST_REPORT:
		take_answer_to_report(t, is_taken);
		break;
	case REQUEST_END:
		c->ended = t->link.number;
		break;
	case REQUEST_FORGET:
		free_comm(t, t->asked_comm);
		break;
	}
}

/* --- The thread ---------------------------------------------------------------------------------- */

/* There is no tracer. */
static void drop_tasks(struct sender *t)
{
	for (unsigned i = 0; i < t->n_tasks; i++)
		drop_task(t, t->tasks[i]);
	t->n_tasks = 0;
}

static void sender_receive(struct sender *t, int timeout_ms)
{
	enum answer answer = link_hear(&t->link, timeout_ms);

	if (answer == ANSWER_LOST && t->asked == REQUEST_REPORT)
		t->sums.lost += t->batch.n_tasks;
	if (answer == ANSWER_DONE || answer == ANSWER_REFUSED)
		take_answer(t, answer == ANSWER_DONE);
}

/* True: something is asked, or was done. */
static bool sender_turn(struct sender *t)
{
	t->now_ns = num_now_ns();
	link_open(&t->link, t->now_ns);
	see_closed(t);
	read_ring(t);
	if (t->link.fd < 0)
		drop_tasks(t);
	else if (t->link.asked_ns)
		return true;
	else if (sender_watch(t) || tag_next(t) || sender_report(t))
		return true;
	return part_next(t);
}

static void wait_for_work(struct sender *t)
{
	bool idle = t->n_tasks == 0 && t->now_ns > t->read_ns + SUMS_NS + LOOK_NS;
	uint64_t until_ns = t->now_ns + (idle ? IDLE_NS : LOOK_NS);
	const struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000),
				       .tv_nsec = (long)(until_ns % 1000000000)};

	atomic_store_explicit(&is_idle, idle, memory_order_relaxed);
	(void)pthread_mutex_lock(&lock);
	if (!stops)
		(void)pthread_cond_clockwait(&wakes, &lock, CLOCK_MONOTONIC, &until);
	(void)pthread_mutex_unlock(&lock);
	atomic_store_explicit(&is_idle, false, memory_order_relaxed);
}

static bool is_to_stop(void)
{
	bool is;

	(void)pthread_mutex_lock(&lock);
	is = stops;
	(void)pthread_mutex_unlock(&lock);
	return is;
}

static void sender_run(struct sender *t)
{
	uint64_t leave_ns = 0;

	while (!leave_ns || num_now_ns() < leave_ns) {
		if (!t->is_leaving && is_to_stop()) {
			t->is_leaving = true;
			leave_ns = num_now_ns() + FAREWELL_NS;
		}
		if (sender_turn(t))
			sender_receive(t, t->link.asked_ns ? (int)(LOOK_NS / MS) : 0);
		else if (t->is_leaving)
			return;
		else
			wait_for_work(t);
	}
}

static void *main_of_thread(void *arg)
{
	struct sender *t = arg;

	(void)pthread_setname_np(pthread_self(), "weightd-nccl");
	t->now_ns = t->lost_reported_ns = num_now_ns();
	t->lost_reported = ring_lost() + slot_lost();
	sender_run(t);
	drop_tasks(t);
	discard_ring();
	link_close(&t->link);
	return NULL;
}

static int start_thread(struct sender *t)
{
	sigset_t all, before;
	pthread_attr_t attr;
	int r;

	r = pthread_attr_init(&attr);
	if (r != 0)
		return -r;
	(void)pthread_attr_setstacksize(&attr, STACK_SIZE);
	/* Signals are the host's, and its threads'. */
	(void)sigfillset(&all);
	(void)pthread_sigmask(SIG_SETMASK, &all, &before);
	r = pthread_create(&thread, &attr, main_of_thread, t);
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	(void)pthread_attr_destroy(&attr);
	return -r;
}

int sender_start(void)
{
	static struct sender sender; /* nothing is allocated in somebody's process */
	const char *watches = getenv("WEIGHTD_NCCL_WATCH");
	int r;

	if (runs)
		return 0;
	memset(&sender, 0, sizeof(sender));
	link_init(&sender.link);
	sender.watches = watches && !strcmp(watches, "1");
	discard_ring(); /* its entries belong to communicators that are freed */
	stops = false;
	r = start_thread(&sender);
	runs = r == 0;
	return r;
}

void sender_stop(void)
{
	if (runs) {
		(void)pthread_mutex_lock(&lock);
		stops = true;
		(void)pthread_cond_signal(&wakes);
		(void)pthread_mutex_unlock(&lock);
		(void)pthread_join(thread, NULL);
		runs = false;
	}
	for (struct comm *c = comms; c < comms + comm_limit(); c++)
		if (comm_state(c) == COMM_CLOSED) {
			slot_free_of((uint32_t)(c - comms));
			comm_free(c);
		}
}

/* A child loses the records of the thread, as it lost the thread. */
void sender_forget(void)
{
	link_forget();
	(void)pthread_mutex_init(&lock, NULL);
	(void)pthread_cond_init(&wakes, NULL);
	atomic_store(&is_idle, false);
	runs = false;
}

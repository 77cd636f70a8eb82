#include "libclient/train/engine/wait.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/num.h"
#include "libclient/train/engine/cpus.h"
#include "libclient/train/plan/sentence.h"

#define MS ((uint64_t)1000000)
#define TICK_NS (WAIT_TICK_MS * MS)
#define CHECK_NS (1000 * MS) /* of asking if the job exists */
#define DEADLINE_DEFAULT_MS 30000
#define START_DEFAULT_MS 600000
#define N_YIELDS 8
#define N_PAUSES 2000 /* about 50 us: longer than a barrier takes, shorter than a time slice */

/* A wait that has come to sleep. */
struct wait {
	struct wait_place *place;
	const struct wait_reason *reason;
	uint32_t (*find_rank)(const struct wait_reason *reason); /* NULL: it is reason->rank */
	uint32_t rank; /* that is missing */
	uint64_t woke_ns; /* last time, by the clock */
	uint64_t waited_ns; /* that counts */
	uint64_t patient_ns; /* of it: up to the last look at which no deadline counted */
	uint64_t looked_ns, checked_ns; /* last look, by waited_ns */
	int r; /* of the last look while other nodes are served */
	const struct control_word *word;
	uint64_t value;
};

static void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield" ::: "memory");
#else
	__asm__ volatile("" ::: "memory");
#endif
}

static uint32_t *futex_of(struct control_word *word)
{
	return (uint32_t *)(void *)&word->value + (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);
}

static void futex_wake_all(struct control_word *word)
{
	(void)syscall(SYS_futex, futex_of(word), FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/*
 * A value that grew by a multiple of 2^32 between the load and the wait looks unchanged: that costs a tick. Returns true if a
 * signal was handled; the word is looked at in any case.
 */
static bool futex_wait(struct control_word *word, uint64_t value, uint64_t timeout_ns)
{
	struct timespec timeout = {.tv_sec = (time_t)(timeout_ns / (1000 * MS)),
				   .tv_nsec = (long)(timeout_ns % (1000 * MS))};

	return syscall(SYS_futex, futex_of(word), FUTEX_WAIT, (uint32_t)value, &timeout, NULL, 0) <
		       0 &&
	       errno == EINTR;
}

/* Returns true where the rank has a process, and remembers it. */
static bool rank_meet(struct wait_place *p, uint32_t rank)
{
	int pid = p->job ? weightd_job_holder(p->job, rank) : -1;

	if (pid != 0)
		atomic_store_explicit(&p->pids[rank], pid, memory_order_relaxed);
	return pid != 0;
}

static int rank_pid(const struct wait_place *p, uint32_t rank)
{
	return atomic_load_explicit(&p->pids[rank], memory_order_relaxed);
}

void wait_place_init(struct wait_place *p, struct weightd_job *job, uint32_t rank, uint32_t n_ranks,
		     const struct weightd_train_options *options)
{
	memset(p, 0, sizeof(*p));
	p->job = job;
	p->rank = rank;
	p->n_ranks = n_ranks;
	p->deadline_ms = options && options->deadline_ms ? options->deadline_ms
							 : DEADLINE_DEFAULT_MS;
	p->start_ms = options && options->deadline_ms ? options->deadline_ms : START_DEFAULT_MS;
	p->on_death = options ? options->on_death : WEIGHTD_DEATH_WAIT;
	p->is_interruptible = options && options->interruptible;
	p->watches_all = p->on_death == WEIGHTD_DEATH_FAIL;
	p->asks_server = job != NULL;
	wait_place_meet(p);
}

void wait_place_meet(struct wait_place *p)
{
	for (uint32_t i = 0; i < p->n_ranks; i++)
		(void)rank_meet(p, i);
	p->spins = cpus_suffice(p->job, p->rank, p->n_ranks);
}

/*
 * The order of the store and the load of n_waiters, and in a waiter of its increment and its load of the value, is what
 * no waiter is lost by: all four are sequentially consistent.
 */
void wait_publish(struct control_word *word, uint64_t value)
{
	atomic_store(&word->value, value);
	if (atomic_load(&word->n_waiters))
		futex_wake_all(word);
}

void wait_publish_max(struct control_word *word, uint64_t value)
{
	uint64_t old = atomic_load(&word->value);

	while (old < value && !atomic_compare_exchange_weak(&word->value, &old, value))
		;
	if (atomic_load(&word->n_waiters))
		futex_wake_all(word);
}

static int deadline_of(const struct wait_place *p)
{
	return p->is_starting ? p->start_ms : p->deadline_ms;
}

/* The job in a sentence; without one there is no process that could be removed. */
static const char *job_name(const struct wait_place *p)
{
	return p->job ? weightd_job_name(p->job) : "";
}

struct phrase {
	char text[160];
};

/* "update its parameters (elements 4096 to 8192) of step 17" */
static const char *reason_phrase(struct phrase *ret, const struct wait_reason *reason)
{
	const struct plan_interval *e = &reason->elements;
	char elements[64] = "", step[32] = "";

	if (e->begin < e->end)
		(void)snprintf(elements, sizeof(elements), " (elements %" PRIu64 " to %" PRIu64 ")",
			       e->begin, e->end);
	if (reason->step)
		(void)snprintf(step, sizeof(step), " of step %" PRIu64, reason->step);
	(void)snprintf(ret->text, sizeof(ret->text), "%s%s%s", reason->what, elements, step);
	return ret->text;
}

/* " (process 4711)", or nothing where the pid is not known. */
static const char *pid_phrase(struct phrase *ret, const struct wait_place *p, uint32_t rank)
{
	ret->text[0] = '\0';
	if (rank_pid(p, rank) > 0)
		(void)snprintf(ret->text, sizeof(ret->text), " (process %d)", rank_pid(p, rank));
	return ret->text;
}

static int fail_dead(const struct wait *w, uint32_t rank)
{
	const struct wait_place *p = w->place;
	struct phrase what, pid;

	(void)reason_phrase(&what, w->reason);
	(void)pid_phrase(&pid, p, rank);
	if (rank == w->rank)
		return train_fail(
			-EOWNERDEAD,
			"rank %u%s died and did not %s; start rank %u again, or remove the job "
			"(weightctl rm %s)",
			rank, pid.text, what.text, rank, job_name(p));
	return train_fail(
		-EOWNERDEAD,
		"rank %u%s died while rank %u waited for rank %u to %s; start rank %u again, or remove "
		"the job (weightctl rm %s)",
		rank, pid.text, p->rank, w->rank, what.text, rank, job_name(p));
}

static int fail_late(const struct wait *w, bool is_present)
{
	const struct wait_place *p = w->place;
	uint32_t rank = w->rank;
	double seconds = (double)deadline_of(p) / 1000;
	const char *cause = w->reason->cause;
	struct phrase what, pid;

	(void)reason_phrase(&what, w->reason);
	(void)pid_phrase(&pid, p, rank);
	if (is_present)
		return train_fail(
			-ETIMEDOUT,
			"rank %u%s did not %s within %g s; look why that process is stopped or stuck%s%s, "
			"or ask for a longer deadline",
			rank, pid.text, what.text, seconds, cause ? ", or " : "",
			cause ? cause : "");
	return train_fail(
		-ETIMEDOUT,
		"rank %u did not %s within %g s: it has no process%s; start rank %u, or remove the job "
		"(weightctl rm %s)",
		rank, what.text, seconds, rank_pid(p, rank) ? " any more" : "", rank, job_name(p));
}

static int fail_interrupted(const struct wait *w)
{
	struct phrase what;

	return train_fail(-EINTR,
			  "a signal interrupted rank %u, which waited for rank %u to %s; call again to "
			  "continue",
			  w->place->rank, w->rank, reason_phrase(&what, w->reason));
}

/* weightd_job_check() talks to the server, on a connection that only one thread may use. */
static bool job_is_removed(struct weightd_job *job)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* connections of jobs */
	int r;

	if (pthread_mutex_trylock(&lock) != 0)
		return false; /* another thread is asking */
	r = weightd_job_check(job);
	(void)pthread_mutex_unlock(&lock);
	return r == -ESTALE;
}

static int fail_removed(const struct wait *w)
{
	struct phrase what;

	return train_fail(
		-ESTALE,
		"job '%s' was removed while rank %u waited for rank %u to %s; create another one",
		job_name(w->place), w->place->rank, w->rank, reason_phrase(&what, w->reason));
}

int wait_check_removed(struct wait_place *p, const char *what)
{
	if (!p->job || !job_is_removed(p->job))
		return 0;
	return train_fail(-ESTALE, "job '%s' was removed: rank %u cannot %s; create another one",
			  job_name(p), p->rank, what);
}

/* 0: wait on. */
static int look_at_ranks(struct wait *w)
{
	struct wait_place *p = w->place;
	uint32_t rank = w->rank;

	if (!rank_meet(p, rank) && rank_pid(p, rank)) {
		if (p->on_death == WEIGHTD_DEATH_FAIL)
			return fail_dead(w, rank);
		if (p->on_death == WEIGHTD_DEATH_FINISH && !w->reason->for_successor)
			return WAIT_DEAD;
	}
	for (uint32_t i = 0; p->watches_all && i < p->n_ranks; i++)
		if (i != p->rank && i != rank && !rank_meet(p, i) && rank_pid(p, i))
			return fail_dead(w, i);
	return 0;
}

static uint64_t counted_ns(const struct wait *w)
{
	return w->waited_ns - w->patient_ns;
}

static bool is_late(const struct wait *w)
{
	int deadline_ms = deadline_of(w->place);

	return deadline_ms >= 0 && counted_ns(w) >= (uint64_t)deadline_ms * MS;
}

/* Looks for the end of the wait without its word. */
static int check(struct wait *w)
{
	struct wait_place *p = w->place;
	int r;

	if (p->is_cancelled)
		return train_fail(-ECANCELED, "a wait of rank %u was cancelled", p->rank);
	if (w->find_rank)
		w->rank = w->find_rank(w->reason);
	r = p->job ? look_at_ranks(w) : 0;
	if (r == 0 && p->asks_server && (is_late(w) || w->waited_ns - w->checked_ns >= CHECK_NS)) {
		w->checked_ns = w->waited_ns;
		if (job_is_removed(p->job))
			r = fail_removed(w);
	}
	if (r == 0 && is_late(w))
		r = fail_late(w, rank_meet(p, w->rank));
	return r;
}

/* A process that was stopped, or had no CPU, has not waited all that time. */
static uint64_t count_time(uint64_t *woke_ns)
{
	uint64_t now = num_now_ns(), passed = now - *woke_ns;

	*woke_ns = now;
	return passed < 4 * TICK_NS ? passed : 4 * TICK_NS;
}

static void wait_count(struct wait *w)
{
	w->waited_ns += count_time(&w->woke_ns);
	if (w->place->is_patient)
		w->patient_ns = w->waited_ns;
}

/* Other nodes may keep this rank for as long as the wait lasts, which ends as without them. */
static bool is_over(void *wait)
{
	struct wait *w = wait;

	if (atomic_load(&w->word->value) >= w->value)
		return true;
	wait_count(w);
	w->r = check(w);
	return w->r != 0;
}

static int look(struct wait *w)
{
	struct wait_place *p = w->place;

	if (!is_late(w) && w->waited_ns - w->looked_ns < TICK_NS)
		return 0;
	w->looked_ns = w->waited_ns;
	w->r = 0;
	if (p->serve && p->serve(p->serve_data, is_over, w))
		return fail_interrupted(w);
	return w->r ? w->r : check(w);
}

static uint64_t wait_timeout(const struct wait *w)
{
	int deadline_ms = deadline_of(w->place);
	uint64_t deadline_ns = (uint64_t)deadline_ms * MS;

	if (deadline_ms < 0 || deadline_ns > counted_ns(w) + TICK_NS)
		return TICK_NS;
	return deadline_ns > counted_ns(w) ? deadline_ns - counted_ns(w) : 0;
}

static int wait_asleep(struct wait *w, struct control_word *word, uint64_t value)
{
	for (;;) {
		uint64_t now = atomic_load(&word->value);
		bool is_interrupted;
		int r;

		if (now >= value)
			return 0;
		is_interrupted = futex_wait(word, now, wait_timeout(w));
		wait_count(w);
		r = look(w);
		if (r == 0 && is_interrupted && w->place->is_interruptible)
			r = fail_interrupted(w);
		/* The rank may have published before it ended. */
		if (r != 0)
			return atomic_load(&word->value) >= value ? 0 : r;
	}
}

static bool has_arrived(struct control_word *word, uint64_t value)
{
	return atomic_load_explicit(&word->value, memory_order_acquire) >= value;
}

/*
 * Where ranks share CPUs, the one that is waited for is likely to be next on this one: a few yields take a quarter of the
 * time of a sleep and a wake (4 ranks on 2 CPUs). Many yield what is ours to other processes.
 */
static bool wait_awake(const struct wait_place *p, struct control_word *word, uint64_t value)
{
	for (unsigned i = 0; p->spins && i < N_PAUSES; i++) {
		if (has_arrived(word, value))
			return true;
		pause_cpu();
	}
	if (has_arrived(word, value))
		return true;
	for (unsigned i = 0; !p->spins && i < N_YIELDS; i++) {
		(void)sched_yield();
		if (has_arrived(word, value))
			return true;
	}
	return false;
}

int wait_for_found(struct wait_place *p, struct control_word *word, uint64_t value,
		   const struct wait_reason *reason,
		   uint32_t (*find_rank)(const struct wait_reason *reason))
{
	bool waits = !has_arrived(word, value);
	enum control_phase before = CONTROL_NEVER;
	int r = 0;

	if (waits)
		before = status_wait(p->lane, reason->topic, reason->rank);
	if (!wait_awake(p, word, value)) {
		struct wait w = {.place = p,
				 .reason = reason,
				 .find_rank = find_rank,
				 .rank = reason->rank,
				 .woke_ns = num_now_ns(),
				 .word = word,
				 .value = value};

		atomic_fetch_add(&word->n_waiters, 1);
		r = wait_asleep(&w, word, value);
		atomic_fetch_sub(&word->n_waiters, 1);
	}
	if (waits)
		status_enter(p->lane, before);
	/* A rank that was quick is met as well, once. */
	if (r == 0 && rank_pid(p, reason->rank) == 0)
		(void)rank_meet(p, reason->rank);
	return r;
}

int wait_for(struct wait_place *p, struct control_word *word, uint64_t value,
	     const struct wait_reason *reason)
{
	return wait_for_found(p, word, value, reason, NULL);
}

int wait_for_thread(struct wait_place *p, struct control_word *word, uint64_t value,
		    const char *what, void (*tick)(void *data), void *data)
{
	uint64_t checked_ns = num_now_ns();
	int r = 0;

	atomic_fetch_add(&word->n_waiters, 1);
	for (uint64_t now; r == 0 && (now = atomic_load(&word->value)) < value;) {
		bool is_interrupted = futex_wait(word, now, TICK_NS);

		if (atomic_load(&word->value) >= value)
			break;
		if (tick)
			tick(data);
		if (is_interrupted && p->is_interruptible)
			r = train_fail(-EINTR,
				       "a signal interrupted rank %u, which was to %s; call again to "
				       "continue",
				       p->rank, what);
		else if (num_now_ns() - checked_ns >= CHECK_NS) {
			checked_ns = num_now_ns();
			r = wait_check_removed(p, what);
		}
	}
	atomic_fetch_sub(&word->n_waiters, 1);
	return r;
}

/* --- Other nodes -------------------------------------------------------------------------------------- */

void wait_beat_begin(struct wait_beat *b, struct wait_place *p)
{
	*b = (struct wait_beat){.place = p, .deadline_ms = deadline_of(p), .woke_ns = num_now_ns()};
}

static int beat_look_at_ranks(struct wait_place *p, const char *what)
{
	struct phrase pid;

	for (uint32_t i = 0; i < p->n_ranks; i++)
		if (i != p->rank && !rank_meet(p, i) && rank_pid(p, i))
			return train_fail(
				-EOWNERDEAD,
				"rank %u%s died while rank %u was to %s; start rank %u again, or remove "
				"the job (weightctl rm %s)",
				i, pid_phrase(&pid, p, i), p->rank, what, i, job_name(p));
	return 0;
}

int wait_beat(struct wait_beat *b, const char *what)
{
	struct wait_place *p = b->place;
	uint64_t passed = count_time(&b->woke_ns);
	bool is_late;
	int r = 0;

	b->waited_ns = p->is_patient ? 0 : b->waited_ns + passed;
	is_late = b->deadline_ms >= 0 && b->waited_ns >= (uint64_t)b->deadline_ms * MS;
	if (p->is_cancelled)
		return train_fail(-ECANCELED, "a wait of rank %u was cancelled", p->rank);
	if (p->job && p->watches_all)
		r = beat_look_at_ranks(p, what);
	if (r == 0 && p->asks_server && (is_late || b->woke_ns - b->looked_ns >= CHECK_NS)) {
		b->looked_ns = b->woke_ns;
		r = wait_check_removed(p, what);
	}
	return r == 0 && is_late ? WAIT_LATE : r;
}

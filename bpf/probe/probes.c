/*
 * Loads the programs in probes.bpf.c, and emits what they report.
 *
 * When a process begins to map a library that is looked for, the collector looks at the kernel's list of its mappings, which needs
 * no access to /proc. After each look it pauses for ten times as long. If more processes have mapped a library
 * meanwhile than it can note, it looks at all processes, and drops files that no process maps any more. Nothing is
 * pinned.
 */
#include "bpf/probe/probes.h"

#include <assert.h>
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bpf/base/json_null.h"
#include "bpf/base/programs.h"
#include "bpf/base/ring.h"
#include "bpf/base/support.h"
#include "bpf/event/event.h"
#include "bpf/probe/call_count.h"
#include "bpf/probe/mappings.h"
#include "bpf/probe/mmap_watch.h"
#include "bpf/probe/probed_file.h"
#include "bpf/probe/probes.bpf.h"
#include "bpf/probe/site.h"
#include "bpf/probe/uprobe_multi.h"
#include "bpf/probe/usdt.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "server/base/loop.h"

#include <bpf/probe/probes.skel.h>

#define PERIOD_NS 10000000u /* between two looks, at least */
#define SHARE 10 /* looks may take one part in so many of the time */
#define SWEEP_NS 10000000000u /* between two looks at all processes because files had no room */
#define COUNT_NS 1000000000u /* between two looks at what is counted */
#define NOTED_MAX 64
#define THREADS_MAX 256

/* The last event of a thread. */
struct thread_event {
	uint32_t tid;
	const char *word;
	uint64_t ns;
};

struct probes {
	struct collector *collector;
	struct probes_bpf *bpf;
	struct ring ring;
	struct mmap_watch *mmap_watch;
	char why_no_mmap_watch[N_MMAP_WATCH_KINDS]
			      [WHY_SIZE]; /* reason for each kind better than the one in use */
	struct source calls, mapped;
	struct timer timer; /* until mappings are watched again */
	struct timer count_timer; /* while something is counted */
	struct call_counts call_counts;
	struct probed_files files;
	struct site_state state;
	struct mappings mappings;
	struct thread_event thread_events[THREADS_MAX]; /* indexed by the number of the thread */
	pid_t noted[NOTED_MAX]; /* processes to look at */
	size_t n_noted;
	bool is_sweep_due;
	uint64_t swept_ns;
	uint64_t heard_ns; /* when the last look at mappings began; 0: there was none */
	uint64_t n_missed; /* counted already */
};

struct qps *probes_qps(struct probes *p)
{
	return &p->state.qps;
}

struct usdt *probes_usdt(struct probes *p)
{
	return p->state.usdt;
}

size_t probes_metrics(const struct probes *p, struct program ret[PROGRAMS_MAX], size_t n)
{
	n = programs_add(p->bpf->obj, ret, n);
	n = programs_add(usdt_object(p->state.usdt), ret, n);
	return programs_add(mmap_watch_object(p->mmap_watch), ret, n);
}

/* --- calls --- */

static json_t *call_json(const struct probe_call *c, const struct site *site)
{
	return json_pack("{ss ss sI sI sI sI sI so ss so sb}", "kind", "act", "act", site->word,
			 "ns", (json_int_t)c->ns, "took_ns", (json_int_t)c->took_ns, "pid",
			 (json_int_t)c->tgid, "tid", (json_int_t)c->tid, "uid", (json_int_t)c->uid,
			 "comm", chars_or_null(c->comm, sizeof(c->comm)), "function",
			 site->function, "result",
			 site->result == RESULT_NUMBER ? json_integer((int)c->result) : json_null(),
			 "failed", !site_is_done(site, c));
}

/*
 * True if a function calls another one for the same purpose, as old versions do: the event was emitted already.
 */
static bool is_emitted(struct probes *p, const struct probe_call *c, const struct site *site)
{
	struct thread_event *last = &p->thread_events[c->tid % THREADS_MAX];
	bool is_same = last->tid == c->tid && last->word && !strcmp(last->word, site->word) &&
		       last->ns >= c->ns - c->took_ns;

	*last = (struct thread_event){.tid = c->tid, .word = site->word, .ns = c->ns};
	return is_same;
}

static void call_count_emit(void *context, const struct call_count_key *key,
			    const struct call_count *since)
{
	const struct site *site = site_numbered(key->site);
	struct probes *p = context;

	if (!site)
		return;
	event_emit(p->collector,
		   json_pack("{ss ss sI sn sI sI so ss sn sb sI sI sI sI}", "kind", "act", "act",
			     site->word, "ns", (json_int_t)since->ns, "took_ns", "pid",
			     (json_int_t)key->tgid, "uid", (json_int_t)since->uid, "comm",
			     chars_or_null(since->comm, sizeof(since->comm)), "function",
			     site->function, "result", "failed", since->errors > 0, "calls",
			     (json_int_t)since->calls, "errors", (json_int_t)since->errors,
			     "calling_ns", (json_int_t)since->calling_ns, "bytes",
			     (json_int_t)since->bytes));
}

static void take_call_counts(struct probes *p)
{
	p->bpf->bss->epoch++; /* calls from here on are announced anew */
	call_counts_take(&p->call_counts, call_count_emit, p);
}

static void on_count_timer(struct timer *timer)
{
	take_call_counts(container_of(timer, struct probes, count_timer));
}

/* Not at once: then there will be more of it. */
static void await_call_counts(struct probes *p)
{
	timer_start_once(p->collector->loop, &p->count_timer, COUNT_NS);
}

static void call_take(void *context, const void *data, size_t size)
{
	const struct probe_call *c = data;
	struct probes *p = context;
	const struct site *site = size >= sizeof(*c) ? site_numbered(c->site) : NULL;
	json_t *event;

	if (site && site->plan.is_counted)
		await_call_counts(p);
	if (!site || site->plan.is_counted || (site->word && is_emitted(p, c, site)))
		return;
	event = site->word ? call_json(c, site) : NULL;
	p->state.event = p->collector->last_event + 1;
	if ((site->fill && !site->fill(&p->state, c, event)) || !site->word)
		json_decref(event);
	else
		event_emit(p->collector, event);
}

static void count_missed(struct probes *p)
{
	const struct missed *missed = &p->bpf->bss->missed;
	uint64_t n = missed->ring + missed->limited + missed->pending;

	if (n != p->n_missed)
		await_call_counts(p); /* ended processes still take room */
	if (n != p->n_missed)
		event_count_lost(p->collector, n - p->n_missed, EVENTS_OF_PROBES);
	p->n_missed = n;
}

void probes_count_missed(struct probes *p)
{
	count_missed(p);
	usdt_count_missed(p->state.usdt);
}

void probes_take(struct probes *p)
{
	probes_take_calls(p);
	if (timer_runs(&p->count_timer))
		take_call_counts(p);
}

void probes_take_calls(struct probes *p)
{
	ring_take_all(&p->ring);
	count_missed(p);
}

static void on_calls(struct source *s, uint32_t events)
{
	struct probes *p = container_of(s, struct probes, calls);

	(void)events;
	ring_take(&p->ring);
	count_missed(p);
}

/* --- mappings --- */

static void mapping_add(void *context, const struct mapping *m)
{
	struct probes *p = context;

	if (!probed_files_add(&p->files, m, p->heard_ns) && num_now_ns() - p->swept_ns > SWEEP_NS)
		p->is_sweep_due = true;
}

static void report_unseen_file(void *context, const struct probed_file *file)
{
	const struct probes *p = context;

	event_report_unseen(p->collector, file->path, file->since_ns,
			    file->library->attach ? EVENTS_OF_WEIGHTD : EVENTS_OF_PROBES);
}

static int sweep_processes(struct probes *p)
{
	int r;

	p->n_noted = 0;
	probed_files_begin_sweep(&p->files);
	r = mappings_look(&p->mappings, 0, mapping_add, p);
	if (r == 0)
		probed_files_end_sweep(&p->files);
	p->is_sweep_due = r < 0;
	p->swept_ns = num_now_ns();
	return r;
}

static void note_process(void *context, pid_t pid, const char *name)
{
	struct probes *p = context;

	if (!library_named(name) || pid == getpid())
		return;
	for (size_t i = 0; i < p->n_noted; i++)
		if (p->noted[i] == pid)
			return;
	if (p->n_noted < NOTED_MAX)
		p->noted[p->n_noted++] = pid;
	else
		p->is_sweep_due = true;
}

/*
 * A process that has ended has no mappings. 0, or negative errno: mappings since then are unknown.
 */
static int look_at_noted(struct probes *p)
{
	int r = 0;

	for (size_t i = 0; i < p->n_noted && !p->is_sweep_due; i++)
		p->is_sweep_due |= mappings_look(&p->mappings, p->noted[i], mapping_add, p) < 0;
	if (p->is_sweep_due)
		r = sweep_processes(p);
	p->n_noted = 0;
	return r;
}

/* Deaf from then on, until the timer: threads that begin and end would wake us as well. */
static void take_mmaps(struct probes *p)
{
	uint64_t began = num_now_ns(), pause_ns;
	int n = mmap_watch_take(p->mmap_watch, note_process, p);

	p->is_sweep_due |= n < 0;
	if (look_at_noted(p) == 0)
		p->heard_ns = began;
	if (n == 0)
		return;
	pause_ns = (num_now_ns() - began) * SHARE;
	if (pause_ns < PERIOD_NS)
		pause_ns = PERIOD_NS;
	loop_modify(&p->mapped, 0);
	timer_start_once(p->collector->loop, &p->timer, pause_ns);
}

static void on_mmap(struct source *s, uint32_t events)
{
	(void)events;
	take_mmaps(container_of(s, struct probes, mapped));
}

static void on_pause_over(struct timer *timer)
{
	struct probes *p = container_of(timer, struct probes, timer);

	loop_modify(&p->mapped, EPOLLIN);
	take_mmaps(p); /* mappings during the pause cause no event any more */
}

/* --- its life --- */

/* To many functions at once. */
static void expect_multi(struct probes_bpf *bpf)
{
	(void)bpf_program__set_expected_attach_type(bpf->progs.on_call, UPROBE_MULTI_ATTACH_TYPE);
	(void)bpf_program__set_expected_attach_type(bpf->progs.on_return, UPROBE_MULTI_ATTACH_TYPE);
}

static int probes_load(struct probes *p)
{
	const struct site *site;
	int r;

	p->bpf = probes_bpf__open();
	if (!p->bpf)
		return -errno;
	mappings_choose(p->bpf);
	p->bpf->rodata->collector = (uint32_t)getpid();
	memcpy(p->bpf->rodata->type_sizes, nccl_type_sizes, sizeof(nccl_type_sizes));
	for (size_t i = 0; (site = site_numbered(i)); i++) {
		assert(i < SITES_MAX);
		p->bpf->rodata->plans[i] = site->plan;
	}
	p->mappings = (struct mappings){.program = p->bpf->progs.look,
					.tgid = &p->bpf->bss->at.tgid};
	expect_multi(p->bpf);
	r = bpf_map__set_max_entries(p->bpf->maps.calls, p->collector->ring_size);
	if (r == 0)
		r = probes_bpf__load(p->bpf);
	if (r < 0)
		return r;
	return ring_open(&p->ring, p->bpf->maps.calls, call_take, p);
}

static int wait_for_all(struct probes *p)
{
	struct loop *l = p->collector->loop;
	int r = loop_add(l, &p->calls, ring_fd(&p->ring), EPOLLIN, on_calls);

	return r < 0 ? r : loop_add(l, &p->mapped, mmap_watch_fd(p->mmap_watch), EPOLLIN, on_mmap);
}

/* Files mapped already may have been in use before we began: their since_ns is 0. */
static int look_first(struct probes *p)
{
	uint64_t began = num_now_ns();
	int r = sweep_processes(p);

	p->heard_ns = began;
	return r;
}

static int probes_begin(struct probes *p, char ret_why[WHY_SIZE])
{
	int r = probes_load(p);

	if (r == 0)
		r = usdt_open(p->collector, &p->state.usdt);
	if (r == 0)
		r = uprobe_multi_check(bpf_program__fd(p->bpf->progs.on_call));
	if (r < 0) {
		support_explain(r, UPROBE_MULTI_SINCE, ret_why);
		return r;
	}
	r = mmap_watch_open(&p->mmap_watch, p->why_no_mmap_watch);
	if (r < 0) {
		mmap_watch_explain(p->why_no_mmap_watch, ret_why);
		return r;
	}
	call_counts_init(&p->call_counts, bpf_map__fd(p->bpf->maps.call_counts));
	p->files.call_program = bpf_program__fd(p->bpf->progs.on_call);
	p->files.return_program = bpf_program__fd(p->bpf->progs.on_return);
	r = wait_for_all(p);
	if (r == 0)
		r = look_first(p);
	if (r < 0)
		(void)snprintf(ret_why, WHY_SIZE, "the kernel does not list mappings: %s",
			       strerror(-r));
	return r;
}

int probes_open(struct collector *c, struct probes **ret, char ret_why[WHY_SIZE])
{
	struct probes *p = calloc(1, sizeof(*p));
	int r;

	if (!p) {
		(void)strcpy(ret_why, "out of memory");
		return -ENOMEM;
	}
	p->collector = c;
	timer_init(&p->timer, on_pause_over);
	timer_init(&p->count_timer, on_count_timer);
	gpu_handles_init(&p->state.exports);
	gpu_handles_init(&p->state.allocations);
	qps_init(&p->state.qps);
	probed_files_init(&p->files, &p->mappings, &p->state, report_unseen_file, p);
	call_counts_init(&p->call_counts, -1);
	r = probes_begin(p, ret_why);
	if (r < 0) {
		probes_close(p);
		return r;
	}
	*ret = p;
	return 0;
}

void probes_close(struct probes *p)
{
	if (!p)
		return;
	/* The loop may go on without them. */
	loop_remove(&p->calls);
	loop_remove(&p->mapped);
	timer_stop(&p->timer);
	timer_stop(&p->count_timer);
	probed_files_deinit(&p->files);
	call_counts_deinit(&p->call_counts);
	usdt_close(p->state.usdt);
	gpu_handles_deinit(&p->state.exports);
	gpu_handles_deinit(&p->state.allocations);
	qps_deinit(&p->state.qps);
	mmap_watch_close(p->mmap_watch);
	ring_close(&p->ring);
	probes_bpf__destroy(p->bpf);
	free(p);
}

const struct probed_files *probes_sweep(struct probes *p)
{
	(void)sweep_processes(p); /* after a failure the files are as before */
	return &p->files;
}

const struct mmap_watch *probes_mmap_watch(const struct probes *p)
{
	return p->mmap_watch;
}

const char *probes_why_no_mmap_watch(const struct probes *p, size_t i)
{
	return p->why_no_mmap_watch[i];
}

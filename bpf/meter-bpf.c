/*
 * The meter that is made of the programs in flows.bpf.c. Exact, for sockets in all namespaces.
 *
 * Nothing is pinned: what is in the kernel goes with this process, however it ends.
 */
#include "bpf/meter-bpf.h"

#include <assert.h>
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <flows.skel.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "bpf/programs.h"
#include "bpf/ring.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/list.h"
#include "ipc/base/num.h"

#define SAMPLES 256 /* read at once */
#define SHARE 10 /* of the time that the doctor's looks may take, one in so many */

struct meter_of_bpf {
	struct meter meter;
	struct flows *bpf;
	struct bpf_link *mark, *adopt;
	struct ring ring;
	struct bpf_link *send, *receive; /* while calls are counted */
	unsigned n_calls; /* rows whose calls are */
	meter_event_fn event_fn; /* while events are taken */
	void *context;
};

const struct hook hooks[] = {
	{"on_state", "tp_btf/inet_sock_set_state", BPF_SINCE,
	 "connections that begin after their process was watched or their listener "
	 "tagged, and what any carried between the last look at it and its end"},
	{"on_destroy", "tp_btf/tcp_destroy_sock", BPF_SINCE,
	 "what is taken from a connection that is over"},
	{"on_retransmit", "tp_btf/tcp_retransmit_skb", BPF_SINCE,
	 "the time of each retransmission; not how many there were"},
	{"mark", "iter/bpf_sk_storage_map", BPF_SINCE, "connections in other network namespaces"},
	{"adopt", "iter/task_file", BPF_SINCE, "sockets that a process had before it was watched"},
	{"on_send", "tp_btf/sock_send_length", "6.3", "how large the calls are that send"},
	{"on_receive", "tp_btf/sock_recv_length", "6.3", "how large the calls are that receive"},
};

const size_t n_hooks = ARRAY_LEN(hooks);

static struct meter_of_bpf *self(struct meter *m)
{
	return container_of(m, struct meter_of_bpf, meter);
}

static bool has_capability(unsigned capability)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];

	if (syscall(SYS_capget, &header, data) < 0)
		return false;
	return data[CAP_TO_INDEX(capability)].effective & CAP_TO_MASK(capability);
}

void hook_say_why(int r, const char *since, char ret_why[WHY_SIZE])
{
	bool can = has_capability(CAP_SYS_ADMIN);
	struct utsname kernel;

	if (!can && !has_capability(CAP_BPF))
		(void)snprintf(ret_why, WHY_SIZE,
			       "weightd-trace lacks CAP_BPF%s, which its unit and root have",
			       has_capability(CAP_PERFMON) ? "" : " and CAP_PERFMON");
	else if (!can && !has_capability(CAP_PERFMON))
		(void)snprintf(ret_why, WHY_SIZE,
			       "weightd-trace lacks CAP_PERFMON, which its unit and root have");
	else if (access("/sys/kernel/btf/vmlinux", R_OK) < 0)
		(void)snprintf(ret_why, WHY_SIZE,
			       "the kernel does not describe itself in /sys/kernel/btf/vmlinux: %s",
			       strerror(errno));
	else if (uname(&kernel) == 0 && strverscmp(kernel.release, since) < 0)
		(void)snprintf(ret_why, WHY_SIZE, "it needs Linux %s, and this is %s", since,
			       kernel.release);
	else
		(void)snprintf(ret_why, WHY_SIZE, "the kernel refuses it: %s", strerror(-r));
}

static struct bpf_link *attach_to_flows(struct flows *bpf, struct bpf_program *program)
{
	union bpf_iter_link_info info = {.map.map_fd = (__u32)bpf_map__fd(bpf->maps.flows)};
	LIBBPF_OPTS(bpf_iter_attach_opts, options, .link_info = &info,
		    .link_info_len = sizeof(info));

	return bpf_program__attach_iter(program, &options);
}

static void flows_destroyp(struct flows **bpf)
{
	flows__destroy(*bpf);
}

/* Loads and attaches it alone, for a moment: 0, or negative errno and why. */
static int probe_hook(const struct hook *hook, char ret_why[WHY_SIZE])
{
	cleanup(flows_destroyp) struct flows *bpf = flows__open();
	struct bpf_program *program, *chosen = NULL;
	struct bpf_link *link;
	int r;

	if (!bpf) {
		r = -errno;
		hook_say_why(r, hook->since, ret_why);
		return r;
	}
	bpf_object__for_each_program(program, bpf->obj)
	{
		bool is_it = !strcmp(bpf_program__name(program), hook->program);

		(void)bpf_program__set_autoload(program, is_it);
		if (is_it)
			chosen = program;
	}
	r = flows__load(bpf);
	if (r == 0) {
		link = chosen == bpf->progs.mark ? attach_to_flows(bpf, chosen)
						 : bpf_program__attach(chosen);
		r = link ? 0 : -errno;
		(void)bpf_link__destroy(link);
	}
	if (r < 0)
		hook_say_why(r, hook->since, ret_why);
	return r;
}

void hooks_look(struct findings *f)
{
	uint64_t began_ns = num_now_ns();

	assert(n_hooks <= HOOKS_MAX);
	if (began_ns < f->old_ns)
		return;
	for (size_t i = 0; i < n_hooks; i++)
		if (probe_hook(&hooks[i], f->why_not[i]) == 0)
			f->why_not[i][0] = '\0';
	f->old_ns = num_now_ns() + SHARE * (num_now_ns() - began_ns);
}

const struct bpf_object *meter_object(const struct meter *m)
{
	return m->kind == &meter_bpf ? container_of(m, struct meter_of_bpf, meter)->bpf->obj : NULL;
}

/* Of those at a change of state there are two, of which one runs where the other does not. */
uint64_t meter_misses(const struct meter *m)
{
	const struct meter_of_bpf *b = container_of(m, struct meter_of_bpf, meter);
	uint64_t n = m->kind == &meter_bpf ? program_misses(b->bpf->progs.on_destroy) : 0;

	return n == MISSES_UNKNOWN ? 0 : n;
}

bool hook_is_on(const struct meter *m, const struct hook *hook)
{
	const struct bpf_object *object = meter_object(m);
	const struct bpf_program *program;

	if (!object)
		return false;
	program = bpf_object__find_program_by_name(object, hook->program);
	return program && bpf_program__autoload(program);
}

static void take_event(void *context, const void *data, size_t size)
{
	struct meter_of_bpf *m = context;

	if (size >= sizeof(struct event) && m->event_fn)
		m->event_fn(data, m->context);
}

static void detach_calls(struct meter_of_bpf *b)
{
	(void)bpf_link__destroy(b->send);
	(void)bpf_link__destroy(b->receive);
	b->send = b->receive = NULL;
}

static void bpf_close(struct meter *m)
{
	struct meter_of_bpf *b = self(m);

	detach_calls(b);
	ring_close(&b->ring);
	(void)bpf_link__destroy(b->mark);
	(void)bpf_link__destroy(b->adopt);
	flows__destroy(b->bpf);
	free(b);
}

/* A tick of the clock that is read without looking at the hardware. */
static uint64_t jiffy_ns(void)
{
	struct timespec t = {};

	(void)clock_getres(CLOCK_MONOTONIC_COARSE, &t); /* every kernel has it */
	return (uint64_t)t.tv_nsec;
}

/* They are loaded, which costs nobody anything, where the kernel has what they are attached to (6.3). */
static void choose_calls(struct flows *bpf)
{
	bool has = libbpf_find_vmlinux_btf_id("sock_send_length", BPF_TRACE_RAW_TP) > 0;

	(void)bpf_program__set_autoload(bpf->progs.on_send, has);
	(void)bpf_program__set_autoload(bpf->progs.on_receive, has);
	bpf_program__set_autoattach(bpf->progs.on_send, false);
	bpf_program__set_autoattach(bpf->progs.on_receive, false);
}

static int load(struct meter_of_bpf *b, uint32_t ring_size)
{
	int r;

	b->bpf = flows__open();
	if (!b->bpf)
		return -errno;
	bpf_program__set_autoattach(b->bpf->progs.mark, false);
	bpf_program__set_autoattach(b->bpf->progs.adopt, false);
	b->bpf->rodata->jiffy_ns = jiffy_ns();
	choose_calls(b->bpf);
	r = bpf_map__set_max_entries(b->bpf->maps.events, ring_size);
	if (r < 0)
		return r;
	r = flows__load(b->bpf);
	if (r < 0)
		return r;
	r = flows__attach(b->bpf);
	if (r < 0)
		return r;
	b->mark = attach_to_flows(b->bpf, b->bpf->progs.mark);
	b->adopt = b->mark ? bpf_program__attach_iter(b->bpf->progs.adopt, NULL) : NULL;
	return b->adopt ? ring_open(&b->ring, b->bpf->maps.events, take_event, b) : -errno;
}

static int bpf_open(uint32_t ring_size, struct meter **ret, char ret_why[WHY_SIZE])
{
	struct meter_of_bpf *b = calloc(1, sizeof(*b));
	int r;

	if (!b)
		return -ENOMEM;
	b->meter.kind = &meter_bpf;
	(void)libbpf_set_print(NULL); /* why it does not load the doctor says */
	r = load(b, ring_size);
	if (r < 0) {
		hook_say_why(r, BPF_SINCE, ret_why);
		bpf_close(&b->meter);
		return r;
	}
	*ret = &b->meter;
	return 0;
}

static int bpf_add_row(struct meter *m, uint32_t row)
{
	const struct totals none = {};

	return bpf_map_update_elem(bpf_map__fd(self(m)->bpf->maps.totals), &row, &none,
				   BPF_NOEXIST) < 0
		       ? -errno
		       : 0;
}

static void bpf_remove_row(struct meter *m, uint32_t row)
{
	(void)bpf_map_delete_elem(bpf_map__fd(self(m)->bpf->maps.totals),
				  &row); /* is there, or is gone */
}

/* Runs an iterator to its end. */
static int run(struct bpf_link *link, meter_sample_fn fn, void *context)
{
	cleanup(fd_closep) int fd = bpf_iter_create(bpf_link__fd(link));
	struct sample samples[SAMPLES];
	size_t n = 0;
	ssize_t got;

	if (fd < 0)
		return -errno;
	for (;;) {
		got = read(fd, (char *)samples + n, sizeof(samples) - n);
		if (got < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (got <= 0)
			return got < 0 ? -errno : 0;
		n += (size_t)got;
		for (size_t i = 0; fn && i < n / sizeof(*samples); i++)
			fn(&samples[i], context);
		memmove(samples, (char *)samples + n / sizeof(*samples) * sizeof(*samples),
			n % sizeof(*samples));
		n %= sizeof(*samples);
	}
}

static int bpf_mark(struct meter *m, meter_sample_fn fn, void *context)
{
	return run(self(m)->mark, fn, context);
}

/* The storage is made here, its base where the socket can be read. */
static int bpf_tag(struct meter *m, int fd, uint32_t row, enum since since)
{
	struct flows *bpf = self(m)->bpf;
	struct flow flow = {};
	int r;

	r = meter_cookie(fd, (uint64_t *)&flow.cookie);
	if (r < 0)
		return r;
	if (bpf_map_update_elem(bpf_map__fd(bpf->maps.flows), &fd, &flow, BPF_NOEXIST) < 0 &&
	    errno != EEXIST)
		return -errno;
	bpf->bss->tag_cookie = flow.cookie;
	bpf->bss->tag_row = row;
	bpf->bss->tag_since = since;
	r = bpf_mark(m, NULL, NULL);
	bpf->bss->tag_cookie = 0;
	return r;
}

static void bpf_unwatch(struct meter *m, pid_t pid)
{
	uint32_t tgid = (uint32_t)pid;

	(void)bpf_map_delete_elem(bpf_map__fd(self(m)->bpf->maps.watched), &tgid);
}

static int bpf_watch(struct meter *m, pid_t pid, uint32_t row)
{
	struct meter_of_bpf *b = self(m);
	uint32_t tgid = (uint32_t)pid;
	int r;

	if (bpf_map_update_elem(bpf_map__fd(b->bpf->maps.watched), &tgid, &row, BPF_NOEXIST) < 0)
		return -errno;
	r = run(b->adopt, NULL, NULL);
	if (r < 0)
		bpf_unwatch(m, pid);
	return r;
}

static void bpf_unwatch_cgroup(struct meter *m, uint64_t cgroup)
{
	struct flows *bpf = self(m)->bpf;

	if (bpf_map_delete_elem(bpf_map__fd(bpf->maps.watched_cgroups), &cgroup) == 0)
		bpf->bss->n_cgroups--;
}

static int bpf_watch_cgroup(struct meter *m, uint64_t cgroup, uint32_t row)
{
	struct meter_of_bpf *b = self(m);
	int r;

	if (bpf_map_update_elem(bpf_map__fd(b->bpf->maps.watched_cgroups), &cgroup, &row,
				BPF_NOEXIST) < 0)
		return -errno;
	b->bpf->bss->n_cgroups++;
	r = run(b->adopt, NULL, NULL);
	if (r < 0)
		bpf_unwatch_cgroup(m, cgroup);
	return r;
}

static int attach_calls(struct meter_of_bpf *b)
{
	int r;

	if (!bpf_program__autoload(b->bpf->progs.on_send))
		return -EOPNOTSUPP;
	b->send = bpf_program__attach(b->bpf->progs.on_send);
	b->receive = b->send ? bpf_program__attach(b->bpf->progs.on_receive) : NULL;
	if (b->receive)
		return 0;
	r = -errno;
	detach_calls(b);
	return r;
}

static int bpf_begin_calls(struct meter *m, uint32_t row)
{
	struct meter_of_bpf *b = self(m);
	const struct calls none = {};
	int r = b->n_calls ? 0 : attach_calls(b);

	if (r < 0)
		return r;
	r = bpf_map_update_elem(bpf_map__fd(b->bpf->maps.calls), &row, &none, BPF_NOEXIST);
	if (r == 0)
		b->n_calls++;
	else if (b->n_calls == 0)
		detach_calls(b);
	return r;
}

static int bpf_read_calls(struct meter *m, uint32_t row, struct calls *ret)
{
	return bpf_map_lookup_elem(bpf_map__fd(self(m)->bpf->maps.calls), &row, ret);
}

static void bpf_end_calls(struct meter *m, uint32_t row)
{
	struct meter_of_bpf *b = self(m);

	(void)bpf_map_delete_elem(bpf_map__fd(b->bpf->maps.calls), &row); /* is there */
	if (--b->n_calls == 0)
		detach_calls(b);
}

static int bpf_read(struct meter *m, uint32_t row, struct reading *ret)
{
	if (bpf_map_lookup_elem(bpf_map__fd(self(m)->bpf->maps.totals), &row, &ret->totals) < 0)
		return -errno;
	for (int i = 0; i < N_COUNTERS; i++)
		ret->quality[i] = QUALITY_EXACT;
	ret->opened = ret->ended = QUALITY_EXACT;
	return 0;
}

static int bpf_events_fd(struct meter *m)
{
	return ring_fd(&self(m)->ring);
}

static void bpf_take_events(struct meter *m, bool all, meter_event_fn fn, void *context)
{
	struct meter_of_bpf *b = self(m);

	b->event_fn = fn;
	b->context = context;
	if (all)
		ring_take_all(&b->ring);
	else
		ring_take(&b->ring);
	b->event_fn = NULL;
}

const struct meter_kind meter_bpf = {
	.name = "bpf",
	.is_told_of_ends = true,
	.open = bpf_open,
	.close = bpf_close,
	.add_row = bpf_add_row,
	.remove_row = bpf_remove_row,
	.tag = bpf_tag,
	.watch = bpf_watch,
	.unwatch = bpf_unwatch,
	.watch_cgroup = bpf_watch_cgroup,
	.unwatch_cgroup = bpf_unwatch_cgroup,
	.begin_calls = bpf_begin_calls,
	.read_calls = bpf_read_calls,
	.end_calls = bpf_end_calls,
	.mark = bpf_mark,
	.read = bpf_read,
	.events_fd = bpf_events_fd,
	.take_events = bpf_take_events,
};

/*
 * The meter made of the programs in meter.bpf.c. Exact, for sockets in all namespaces.
 *
 * A kernel may refuse some of these programs, and the others count on: hook.c lists the price of each. No object is
 * pinned: the kernel frees all of them with this process, however it ends.
 */
#include "bpf/tcp/meter-bpf.h"

#include <assert.h>
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <linux/capability.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "bpf/base/programs.h"
#include "bpf/base/ring.h"
#include "bpf/base/support.h"
#include "bpf/tcp/netns.h"
#include "bpf/tcp/socket_cookie.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/list.h"
#include "ipc/base/num.h"

#include <bpf/tcp/meter.skel.h>

#define SAMPLES 256 /* read at once */

/* A row of processes that lacks their older sockets. */
struct part {
	struct list link; /* meter_of_bpf::parts */
	uint32_t row;
};

struct meter_of_bpf {
	struct meter meter;
	struct meter_bpf *bpf;
	struct bpf_link *mark; /* NULL: the kernel refuses it, and each look takes the next one */
	struct bpf_link *mark_tcp;
	struct bpf_link *adopt; /* NULL: the kernel refuses it, and `want` and `mark_tcp` do the same */
	struct bpf_link *want; /* NULL: the kernel refuses it, or it is not needed */
	struct netns_list netns; /* only without one of `mark` and `adopt` */
	struct list parts;
	unsigned n_rows;
	struct ring ring;
	struct bpf_link *send, *receive; /* while calls are counted */
	unsigned n_calls; /* rows with counted calls */
	meter_event_fn event_fn; /* while events are taken */
	void *context;
};

static struct meter_of_bpf *bpf_of(struct meter *m)
{
	return container_of(m, struct meter_of_bpf, meter);
}

const struct bpf_object *meter_object(const struct meter *m)
{
	return m->kind == &meter_bpf ? container_of(m, struct meter_of_bpf, meter)->bpf->obj : NULL;
}

/* Two programs are at a change of state: one of them runs when the other does not. */
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

	if (size >= sizeof(struct tcp_event) && m->event_fn)
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
	struct meter_of_bpf *b = bpf_of(m);

	detach_calls(b);
	ring_close(&b->ring);
	(void)bpf_link__destroy(b->mark);
	(void)bpf_link__destroy(b->mark_tcp);
	(void)bpf_link__destroy(b->adopt);
	(void)bpf_link__destroy(b->want);
	netns_list_deinit(&b->netns);
	meter_bpf__destroy(b->bpf);
	free(b);
}

/* A tick of the clock that is read without looking at the hardware. */
static uint64_t jiffy_ns(void)
{
	struct timespec t = {};

	(void)clock_getres(CLOCK_MONOTONIC_COARSE, &t); /* every kernel has it */
	return (uint64_t)t.tv_nsec;
}

/* Programs at calls are loaded, which costs nothing, where the kernel has their tracepoints (6.3). */
static void choose_all(struct meter_bpf *bpf)
{
	bool has = libbpf_find_vmlinux_btf_id("sock_send_length", BPF_TRACE_RAW_TP) > 0;

	(void)bpf_program__set_autoload(bpf->progs.on_send, has);
	(void)bpf_program__set_autoload(bpf->progs.on_receive, has);
}

static bool hook_works(const struct findings *f, enum hook_number hook)
{
	return !*f->why_not[hook];
}

static bool is_enough(const struct findings *f)
{
	return hook_works(f, HOOK_STATE) &&
	       (hook_works(f, HOOK_MARK) || hook_works(f, HOOK_MARK_TCP));
}

/* `adopts`: whether the kernel may take that program. */
static void choose_found(struct meter_bpf *bpf, const struct findings *f, bool adopts)
{
	for (size_t i = 0; i < N_HOOKS; i++)
		if (!hook_works(f, i))
			(void)bpf_program__set_autoload(
				bpf_object__find_program_by_name(bpf->obj, hooks[i].program), false);
	adopts &= hook_works(f, HOOK_FILES);
	(void)bpf_program__set_autoload(bpf->progs.adopt, adopts);
	if (adopts || !hook_works(f, HOOK_MARK_TCP))
		(void)bpf_program__set_autoload(bpf->progs.want, false);
	if (adopts && hook_works(f, HOOK_MARK))
		(void)bpf_program__set_autoload(bpf->progs.mark_tcp, false);
	bpf->rodata->by_namespace = !hook_works(f, HOOK_MARK);
}

/* The first of the hooks that cannot be done without; where all are refused alike, no hook is named. */
static void explain_refusal(const struct findings *f, char ret_why[WHY_SIZE])
{
	const enum hook_number needed[] = {HOOK_STATE, HOOK_MARK_TCP, HOOK_MARK};
	bool are_alike = true;
	size_t i = 0;

	for (size_t j = 0; j < N_HOOKS; j++)
		are_alike &= !strcmp(f->why_not[j], f->why_not[HOOK_STATE]);
	while (i + 1 < ARRAY_LEN(needed) && hook_works(f, needed[i]))
		i++;
	(void)snprintf(ret_why, WHY_SIZE, "%.*s%s%.*s", are_alike ? 0 : WHY_SIZE / 4,
		       hooks[needed[i]].name, are_alike ? "" : ": ", WHY_SIZE / 2,
		       f->why_not[needed[i]]);
}

static int attach_one(const struct bpf_program *program, struct bpf_link **ret)
{
	if (!bpf_program__autoload(program))
		return 0;
	*ret = bpf_program__attach_iter(program, NULL);
	return *ret ? 0 : -errno;
}

/* A supervisor may let iterators be attached, and none begin. */
static int check_iterators(const struct meter_of_bpf *b)
{
	const struct bpf_link *links[] = {b->mark, b->mark_tcp, b->adopt, b->want};

	for (size_t i = 0; i < ARRAY_LEN(links); i++) {
		cleanup(fd_closep) int fd = links[i] ? program_iterate(links[i]) : -1;

		if (links[i] && fd < 0)
			return fd;
	}
	return 0;
}

static int meter_attach(struct meter_of_bpf *b)
{
	int r = meter_bpf__attach(b->bpf);

	if (r == 0 && bpf_program__autoload(b->bpf->progs.mark)) {
		b->mark = program_attach_to_map(b->bpf->progs.mark, b->bpf->maps.flows);
		r = b->mark ? 0 : -errno;
	}
	if (r == 0)
		r = attach_one(b->bpf->progs.mark_tcp, &b->mark_tcp);
	if (r == 0)
		r = attach_one(b->bpf->progs.adopt, &b->adopt);
	if (r == 0)
		r = attach_one(b->bpf->progs.want, &b->want);
	return r < 0 ? r : check_iterators(b);
}

static int meter_load(struct meter_of_bpf *b, uint32_t ring_size, const struct findings *f,
		      bool adopts)
{
	int r;

	b->bpf = meter_bpf__open();
	if (!b->bpf)
		return -errno;
	bpf_program__set_autoattach(b->bpf->progs.mark, false);
	bpf_program__set_autoattach(b->bpf->progs.mark_tcp, false);
	bpf_program__set_autoattach(b->bpf->progs.adopt, false);
	bpf_program__set_autoattach(b->bpf->progs.want, false);
	bpf_program__set_autoattach(b->bpf->progs.on_send, false);
	bpf_program__set_autoattach(b->bpf->progs.on_receive, false);
	b->bpf->rodata->jiffy_ns = jiffy_ns();
	choose_all(b->bpf);
	choose_found(b->bpf, f, adopts);
	r = bpf_map__set_max_entries(b->bpf->maps.events, ring_size);
	if (r == 0)
		r = meter_bpf__load(b->bpf);
	if (r == 0)
		r = meter_attach(b);
	if (r == 0 && b->mark_tcp)
		r = netns_list_open(&b->netns);
	return r < 0 ? r : ring_open(&b->ring, b->bpf->maps.events, take_event, b);
}

static struct meter_of_bpf *meter_new(void)
{
	struct meter_of_bpf *b = calloc(1, sizeof(*b));

	if (!b)
		return NULL;
	b->meter.kind = &meter_bpf;
	netns_list_init(&b->netns);
	list_init(&b->parts);
	return b;
}

static void set_limits(struct meter_of_bpf *b)
{
	const char *limits = "";

	if ((!b->adopt && !b->want) || !bpf_program__autoload(b->bpf->progs.on_destroy))
		limits = "a row that may lack bytes is sampled";
	else if (!b->mark && !support_has_capability(CAP_SYS_ADMIN))
		limits = "in other network namespaces, only connections that begin later are followed, and not "
			 "seen before they end, as weightd-trace lacks CAP_SYS_ADMIN";
	else if (!b->adopt && !support_has_capability(CAP_SYS_ADMIN))
		limits = "in other network namespaces, sockets that a process had before it was watched are "
			 "not followed, as weightd-trace lacks CAP_SYS_ADMIN";
	(void)strcpy(b->meter.limits, limits);
}

static int try_open(uint32_t ring_size, const struct findings *f, bool adopts,
		    struct meter_of_bpf **ret)
{
	struct meter_of_bpf *b = is_enough(f) ? meter_new() : NULL;
	int r;

	if (!b)
		return is_enough(f) ? -ENOMEM : -EPERM;
	r = meter_load(b, ring_size, f, adopts);
	if (r < 0) {
		bpf_close(&b->meter);
		return r;
	}
	set_limits(b);
	*ret = b;
	return 0;
}

/* Newer kernels refuse one program that is not indispensable, whatever else they load. */
static int try_both(uint32_t ring_size, const struct findings *f, struct meter_of_bpf **ret)
{
	int r = try_open(ring_size, f, true, ret);

	return r < 0 ? try_open(ring_size, f, false, ret) : r;
}

/* Tries everything, then all but the iterator that some kernels refuse, then each hook alone, which takes longest. */
static int bpf_open(uint32_t ring_size, struct meter **ret, char ret_why[WHY_SIZE])
{
	struct findings all = {}, without_mark = {.why_not[HOOK_MARK] = "-"}, found = {};
	struct meter_of_bpf *b;
	int r;

	(void)libbpf_set_print(NULL); /* the doctor explains why it does not load */
	r = try_both(ring_size, &all, &b);
	if (r < 0)
		r = try_both(ring_size, &without_mark, &b);
	if (r < 0) {
		hooks_look(&found);
		support_explain(r, BPF_SINCE, ret_why);
		r = try_both(ring_size, &found, &b);
	}
	if (r < 0 && !is_enough(&found))
		explain_refusal(&found, ret_why);
	if (r == 0)
		*ret = &b->meter;
	return r;
}

static int bpf_add_row(struct meter *m, uint32_t row)
{
	const struct totals none = {};
	struct meter_of_bpf *b = bpf_of(m);

	if (bpf_map_update_elem(bpf_map__fd(b->bpf->maps.totals), &row, &none, BPF_NOEXIST) < 0)
		return -errno;
	b->n_rows++;
	return 0;
}

static struct part *find_part(const struct meter_of_bpf *b, uint32_t row)
{
	struct part *part;

	list_for_each(part, &b->parts, link)
		if (part->row == row)
			return part;
	return NULL;
}

static int add_part(struct meter_of_bpf *b, uint32_t row)
{
	struct part *part = find_part(b, row) ? NULL : malloc(sizeof(*part));

	if (!part)
		return find_part(b, row) ? 0 : -ENOMEM;
	part->row = row;
	list_append(&b->parts, &part->link);
	return 0;
}

static void part_free(struct part *part)
{
	if (part)
		list_remove(&part->link);
	free(part);
}

static void bpf_remove_row(struct meter *m, uint32_t row)
{
	struct meter_of_bpf *b = bpf_of(m);

	(void)bpf_map_delete_elem(bpf_map__fd(b->bpf->maps.totals), &row); /* it is there */
	part_free(find_part(b, row));
	if (--b->n_rows == 0)
		netns_list_clear(&b->netns);
}

/* Runs an iterator to its end. Takes `fd`, which may be negative errno. */
static int iterator_run(int iterator_fd, meter_sample_fn fn, void *context)
{
	cleanup(fd_closep) int fd = iterator_fd;
	struct sample samples[SAMPLES];
	size_t n = 0;
	ssize_t got;

	if (fd < 0)
		return fd;
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

/* The iterator visits the namespace in which it begins. */
static int look_into(struct meter_of_bpf *b, struct netns *one, meter_sample_fn fn, void *context)
{
	int fd;

	if (one->fd < 0 || netns_enter(one) < 0)
		return 0;
	fd = program_iterate(b->mark_tcp);
	netns_leave(&b->netns);
	return iterator_run(fd, fn, context);
}

static int look_by_namespace(struct meter_of_bpf *b, meter_sample_fn fn, void *context)
{
	struct meter_bpf *bpf = b->bpf;
	struct netns *one;
	int r = netns_list_update(&b->netns, bpf_map__fd(bpf->maps.namespaces), bpf->bss->look);

	bpf->bss->look++;
	if (r == 0)
		r = iterator_run(program_iterate(b->mark_tcp), fn, context);
	list_for_each(one, &b->netns.all, link)
		r = r < 0 ? r : look_into(b, one, fn, context);
	return r;
}

static int bpf_mark(struct meter *m, meter_sample_fn fn, void *context)
{
	struct meter_of_bpf *b = bpf_of(m);

	if (!b->mark)
		return look_by_namespace(b, fn, context);
	b->bpf->bss->look++;
	return iterator_run(program_iterate(b->mark), fn, context);
}

static bool is_connected(int fd)
{
	struct tcp_info info = {};
	socklen_t size = sizeof(info);

	return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) < 0 ||
	       info.tcpi_state != TCP_CLOSE;
}

/* TCP has a socket that is not connected in no table. Returns its enum life, or negative errno. */
static int tag_unconnected(struct meter_of_bpf *b, int fd, uint32_t row)
{
	int map_fd = bpf_map__fd(b->bpf->maps.flows);
	struct flow flow;

	if (bpf_map_lookup_elem(map_fd, &fd, &flow) < 0)
		return -errno;
	flow.row = row;
	return bpf_map_update_elem(map_fd, &fd, &flow, BPF_EXIST) < 0 ? -errno : flow.life;
}

/* -EXDEV: no look gets there. */
static int tag_in_namespace(struct meter_of_bpf *b, int fd, uint32_t row)
{
	int r = is_connected(fd) ? LIFE_OPEN : tag_unconnected(b, fd, row);
	struct netns *one;

	if (r < 0)
		return r;
	if (r == LIFE_NONE && !is_connected(fd)) /* nor did it connect meanwhile */
		return 0;
	r = netns_list_find_socket(&b->netns, fd, &one);
	if (r == 0)
		r = one ? look_into(b, one, NULL, NULL)
			: iterator_run(program_iterate(b->mark_tcp), NULL, NULL);
	return r == 0 && b->bpf->bss->tag_cookie && is_connected(fd) ? -EXDEV : r;
}

/* The storage is made here, its base where the socket can be read. */
static int bpf_tag(struct meter *m, int fd, uint32_t row, enum since since)
{
	struct meter_of_bpf *b = bpf_of(m);
	struct meter_bpf *bpf = b->bpf;
	struct flow flow = {};
	int r;

	r = socket_cookie(fd, (uint64_t *)&flow.cookie);
	if (r < 0)
		return r;
	if (bpf_map_update_elem(bpf_map__fd(bpf->maps.flows), &fd, &flow, BPF_NOEXIST) < 0 &&
	    errno != EEXIST)
		return -errno;
	bpf->bss->tag_row = row;
	bpf->bss->tag_since = since;
	bpf->bss->tag_cookie = flow.cookie;
	r = b->mark ? bpf_mark(m, NULL, NULL) : tag_in_namespace(b, fd, row);
	if (r == 0 && b->mark && bpf->bss->tag_cookie)
		r = -ENOENT; /* no iterator visits it */
	bpf->bss->tag_cookie = 0;
	return r;
}

static bool is_seen(const struct meter_of_bpf *b, uint32_t inode)
{
	const struct netns *one;

	list_for_each(one, &b->netns.all, link)
		if (one->inode == inode)
			return one->fd >= 0;
	return inode == b->netns.own;
}

/* Those that are left have ended meanwhile, or are where no look gets. */
static int forget_wanted(struct meter_of_bpf *b)
{
	int map_fd = bpf_map__fd(b->bpf->maps.wanted), r = 0;
	struct socket_name name;
	struct want want;

	while (r == 0 && bpf_map_get_next_key(map_fd, NULL, &name) == 0) {
		if (bpf_map_lookup_and_delete_elem(map_fd, &name, &want) == 0 &&
		    !is_seen(b, want.netns))
			r = add_part(b, want.row);
	}
	b->bpf->bss->n_wanted = 0;
	return r;
}

/* Sockets of the rows before this one are followed already. */
static int adopt_wanted(struct meter_of_bpf *b, uint32_t row)
{
	int r = iterator_run(program_iterate(b->want), NULL, NULL), forgotten;

	if (r == 0 && b->bpf->bss->n_wanted)
		r = look_by_namespace(b, NULL, NULL);
	forgotten = forget_wanted(b);
	if (b->mark) /* no look needs them */
		netns_list_clear(&b->netns);
	if (r == 0 && b->bpf->bss->n_missed)
		r = add_part(b, row);
	b->bpf->bss->n_missed = 0;
	return r < 0 ? r : forgotten;
}

static int adopt_sockets(struct meter_of_bpf *b, uint32_t row)
{
	if (b->adopt)
		return iterator_run(program_iterate(b->adopt), NULL, NULL);
	return b->want ? adopt_wanted(b, row) : add_part(b, row);
}

static void bpf_unwatch(struct meter *m, pid_t pid)
{
	uint32_t tgid = (uint32_t)pid;

	(void)bpf_map_delete_elem(bpf_map__fd(bpf_of(m)->bpf->maps.watched), &tgid);
}

static int bpf_watch(struct meter *m, pid_t pid, uint32_t row)
{
	struct meter_of_bpf *b = bpf_of(m);
	uint32_t tgid = (uint32_t)pid;
	int r;

	if (bpf_map_update_elem(bpf_map__fd(b->bpf->maps.watched), &tgid, &row, BPF_NOEXIST) < 0)
		return -errno;
	r = adopt_sockets(b, row);
	if (r < 0)
		bpf_unwatch(m, pid);
	return r;
}

static void bpf_unwatch_cgroup(struct meter *m, uint64_t cgroup)
{
	struct meter_bpf *bpf = bpf_of(m)->bpf;

	if (bpf_map_delete_elem(bpf_map__fd(bpf->maps.watched_cgroups), &cgroup) == 0)
		bpf->bss->n_cgroups--;
}

static int bpf_watch_cgroup(struct meter *m, uint64_t cgroup, uint32_t row)
{
	struct meter_of_bpf *b = bpf_of(m);
	int r;

	if (bpf_map_update_elem(bpf_map__fd(b->bpf->maps.watched_cgroups), &cgroup, &row,
				BPF_NOEXIST) < 0)
		return -errno;
	b->bpf->bss->n_cgroups++;
	r = adopt_sockets(b, row);
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
	struct meter_of_bpf *b = bpf_of(m);
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
	return bpf_map_lookup_elem(bpf_map__fd(bpf_of(m)->bpf->maps.calls), &row, ret);
}

static void bpf_end_calls(struct meter *m, uint32_t row)
{
	struct meter_of_bpf *b = bpf_of(m);

	(void)bpf_map_delete_elem(bpf_map__fd(b->bpf->maps.calls), &row); /* is there */
	if (--b->n_calls == 0)
		detach_calls(b);
}

static int bpf_read(struct meter *m, uint32_t row, struct reading *ret)
{
	const struct meter_of_bpf *b = bpf_of(m);
	enum quality quality = find_part(b, row) ? QUALITY_SAMPLED : QUALITY_EXACT;

	if (bpf_map_lookup_elem(bpf_map__fd(b->bpf->maps.totals), &row, &ret->totals) < 0)
		return -errno;
	for (int i = 0; i < N_COUNTERS; i++)
		ret->quality[i] = quality;
	if (!bpf_program__autoload(b->bpf->progs.on_destroy))
		ret->quality[COUNTER_CONSUMED] = QUALITY_SAMPLED;
	ret->opened = ret->ended = quality;
	return 0;
}

static int bpf_events_fd(struct meter *m)
{
	return ring_fd(&bpf_of(m)->ring);
}

static void bpf_take_events(struct meter *m, bool all, meter_event_fn fn, void *context)
{
	struct meter_of_bpf *b = bpf_of(m);

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
	.sees_ends = true,
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

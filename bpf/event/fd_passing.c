/*
 * Loads the programs in fd_passing.bpf.c, and emits what they report.
 */
#include "bpf/event/fd_passing.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bpf/base/json_null.h"
#include "bpf/base/programs.h"
#include "bpf/base/ring.h"
#include "bpf/base/support.h"
#include "bpf/event/event.h"
#include "bpf/event/fd_passing.bpf.h"
#include "ipc/base/list.h"
#include "ipc/base/num.h"
#include "server/base/loop.h"

#include <bpf/event/fd_passing.skel.h>

#define MEMFD "memfd:"
#define RECEIVE "receive_fd"
#define RECEIVE_OF_OLD "__receive_fd" /* before Linux 6.8 */

static const char *const memories[N_MEMORIES] = {
	[MEMORY_MEMFD] = "memfd",     [MEMORY_HUGETLB] = "hugetlb", [MEMORY_TMPFS] = "tmpfs",
	[MEMORY_DMA_BUF] = "dma-buf", [MEMORY_NVIDIA] = "nvidia",
};

static const char *const bys[N_BYS] = {
	[BY_MESSAGE] = "message",
	[BY_PIDFD] = "pidfd_getfd",
};

struct fd_passing {
	struct question question;
	struct fd_passing_bpf *bpf;
	struct ring ring;
	struct source source;
	uint64_t n_missed; /* counted already */
};

/* --- events --- */

static json_t *from_json(const struct giver *from)
{
	return json_pack("{sI sI so sI}", "pid", (json_int_t)from->tgid, "uid",
			 (json_int_t)from->uid, "comm",
			 chars_or_null(from->comm, sizeof(from->comm)), "ns", (json_int_t)from->ns);
}

/* The kernel gives these two the names of the file system and of the device. */
static json_t *name_json(const struct passed_fd *p)
{
	size_t n = strlen(MEMFD);

	if (p->memory == MEMORY_DMA_BUF || p->memory == MEMORY_NVIDIA)
		return json_null();
	if (p->is_memfd && !strncmp(p->name, MEMFD, n))
		return chars_or_null(p->name + n, sizeof(p->name) - n);
	return chars_or_null(p->name, sizeof(p->name));
}

/* No inode shows how much memory the driver has behind its device. */
static json_t *bytes_json(const struct passed_fd *p)
{
	return p->memory == MEMORY_NVIDIA ? json_null() : json_integer((json_int_t)p->bytes);
}

static void passed_fd_take(void *context, const void *data, size_t size)
{
	const struct passed_fd *p = data;
	const struct fd_passing *passing = context;

	if (size < sizeof(*p) || p->memory >= N_MEMORIES || p->by >= N_BYS)
		return;
	event_emit(passing->question.collector,
		   json_pack("{ss ss sI sn sI sI sI so si ss so so sI ss? so}", "kind", "act",
			     "act", "fd_receive", "ns", (json_int_t)p->ns, "took_ns", "pid",
			     (json_int_t)p->tgid, "tid", (json_int_t)p->tid, "uid",
			     (json_int_t)p->uid, "comm", chars_or_null(p->comm, sizeof(p->comm)),
			     "fd", p->fd, "memory", memories[p->memory], "name", name_json(p),
			     "bytes", bytes_json(p), "inode", (json_int_t)p->ino, "by", bys[p->by],
			     "from", p->has_from ? from_json(&p->from) : json_null()));
}

/* At each of these somebody received a descriptor, of whatever it was. */
static uint64_t count_misses(const struct fd_passing *p)
{
	const struct bpf_program *programs[] = {p->bpf->progs.on_fd_receive,
						p->bpf->progs.on_fd_taken};
	uint64_t sum = 0, n;

	for (size_t i = 0; i < ARRAY_LEN(programs); i++) {
		n = program_misses(programs[i]);
		sum += n == MISSES_UNKNOWN ? 0 : n;
	}
	return sum;
}

static struct fd_passing *fd_passing_of(struct question *q)
{
	return container_of(q, struct fd_passing, question);
}

static void fd_passing_count_missed(struct question *q)
{
	struct fd_passing *p = fd_passing_of(q);
	uint64_t n = p->bpf->bss->unreported.ring + p->bpf->bss->unreported.limited +
		     count_misses(p);

	if (n != p->n_missed)
		event_count_lost(q->collector, n - p->n_missed, EVENTS_OF_DESCRIPTORS);
	p->n_missed = n;
}

static void fd_passing_take(struct question *q)
{
	ring_take_all(&fd_passing_of(q)->ring);
	fd_passing_count_missed(q);
}

static void on_passed(struct source *s, uint32_t events)
{
	struct fd_passing *p = container_of(s, struct fd_passing, source);

	(void)events;
	ring_take(&p->ring);
	fd_passing_count_missed(&p->question);
}

/* --- its life --- */

static bool is_function(const char *name)
{
	return libbpf_find_vmlinux_btf_id(name, BPF_TRACE_FEXIT) > 0;
}

/* Names the function that the kernel lacks, of those that programs are attached to. */
static void explain_missing(const struct fd_passing_bpf *bpf, char ret_why[WHY_SIZE])
{
	struct bpf_program *program;

	bpf_object__for_each_program(program, bpf->obj)
	{
		const char *section = bpf_program__section_name(program);
		const char *name = strchr(section, '/') + 1;

		if (!strcmp(name, RECEIVE) ? !is_function(RECEIVE) && !is_function(RECEIVE_OF_OLD)
					   : !is_function(name))
			(void)snprintf(ret_why, WHY_SIZE, "the kernel has no function %s", name);
	}
}

static int fd_passing_load(struct fd_passing *p, uint32_t ring_size, char ret_why[WHY_SIZE])
{
	bool is_old = is_function(RECEIVE_OF_OLD);
	int r;

	p->bpf = fd_passing_bpf__open();
	if (!p->bpf)
		return -errno;
	r = bpf_map__set_max_entries(p->bpf->maps.events, ring_size);
	if (r == 0)
		r = bpf_program__set_autoload(p->bpf->progs.on_fd_taken, is_old);
	if (r == 0 && is_old)
		r = bpf_program__set_attach_target(p->bpf->progs.on_fd_receive, 0, RECEIVE_OF_OLD);
	if (r == 0)
		r = fd_passing_bpf__load(p->bpf);
	if (r == 0)
		r = fd_passing_bpf__attach(p->bpf); /* in their order there */
	if (r == -ESRCH && support_has_btf())
		explain_missing(p->bpf, ret_why);
	return r;
}

static int fd_passing_begin(struct fd_passing *p, char ret_why[WHY_SIZE])
{
	struct collector *c = p->question.collector;
	int r = fd_passing_load(p, c->ring_size, ret_why);

	if (r < 0)
		return r;
	r = ring_open(&p->ring, p->bpf->maps.events, passed_fd_take, p);
	if (r < 0)
		return r;
	return loop_add(c->loop, &p->source, ring_fd(&p->ring), EPOLLIN, on_passed);
}

static void fd_passing_release(struct fd_passing *p)
{
	loop_remove(&p->source); /* the loop may go on without it */
	ring_close(&p->ring);
	fd_passing_bpf__destroy(p->bpf);
}

static struct question *fd_passing_open(struct collector *c, const char *off)
{
	struct fd_passing *p = calloc(1, sizeof(*p));
	struct question *q;
	int r;

	if (!p)
		return NULL;
	q = &p->question;
	*q = (struct question){.kind = &question_fd_passing, .collector = c};
	(void)strcpy(q->why, off);
	r = *off ? 0 : fd_passing_begin(p, q->why);
	if (r < 0) {
		if (!*q->why)
			support_explain(r, BPF_SINCE, q->why);
		q->is_refused = true;
		fd_passing_release(p);
		*p = (struct fd_passing){.question = *q};
	}
	return q;
}

static void fd_passing_close(struct question *q)
{
	fd_passing_release(fd_passing_of(q));
	free(fd_passing_of(q));
}

static size_t fd_passing_metrics(const struct question *q, struct program ret[PROGRAMS_MAX],
				 size_t n)
{
	return programs_add(container_of(q, struct fd_passing, question)->bpf->obj, ret, n);
}

static void fd_passing_doctor(struct question *q, struct answer *a)
{
	a->add(a, question_hook_json("fexit/" RECEIVE, q->why,
				     "memory that a process gets by a descriptor, and its sender"));
}

const struct question_kind question_fd_passing = {
	.unseen = "memory that processes pass to each other is not seen",
	.open = fd_passing_open,
	.close = fd_passing_close,
	.doctor = fd_passing_doctor,
	.metrics = fd_passing_metrics,
	.take = fd_passing_take,
	.count_missed = fd_passing_count_missed,
};

/*
 * Owns the probes, if they are open, and answers for them.
 */
#include "bpf/probe/probe_question.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "bpf/base/json_null.h"
#include "bpf/probe/mmap_watch.h"
#include "bpf/probe/probe_needs.h"
#include "bpf/probe/probed_file.h"
#include "bpf/probe/probes.h"
#include "bpf/probe/uprobe_multi.h"
#include "bpf/probe/usdt.h"
#include "ipc/base/list.h"

struct probe_question {
	struct question question;
	struct probes *probes; /* NULL: it is not open */
	struct probe_findings needs; /* as of the start */
};

static struct probe_question *probe_question_of(const struct question *q)
{
	return container_of(q, struct probe_question, question);
}

static bool is_safe(const struct collector *c)
{
	struct utsname kernel;

	return c->is_forced || (uname(&kernel) == 0 && uprobe_multi_is_safe(kernel.release));
}

static struct question *probe_open(struct collector *c, const char *off)
{
	struct probe_question *p = calloc(1, sizeof(*p));
	struct question *q;

	if (!p)
		return NULL;
	q = &p->question;
	*q = (struct question){.kind = &question_probes, .collector = c};
	if (*off)
		(void)strcpy(q->why, off);
	else if (!is_safe(c))
		(void)strcpy(
			q->why,
			"before 6.12.14, 6.13.3 and 6.14 a kernel since 6.11 lets seccomp kill "
			"processes that return to a probe; use --probes=on if this one does not");
	else
		q->is_refused = probes_open(c, &p->probes, q->why) < 0;
	if (q->is_refused)
		probe_needs_check(&p->needs);
	else
		for (size_t i = 0; i < N_PROBE_NEEDS; i++)
			(void)strcpy(p->needs.why_not[i], q->why);
	return q;
}

static void probe_close(struct question *q)
{
	probes_close(probe_question_of(q)->probes);
	free(probe_question_of(q));
}

static int probe_answer(struct question *q, struct answer *a)
{
	if (!probe_question_of(q)->probes) {
		(void)snprintf(a->why, a->why_size, "weightd's probes are not observed: %s", q->why);
		return -EOPNOTSUPP;
	}
	usdt_answer(probes_usdt(probe_question_of(q)->probes), a);
	return 0;
}

/* Adds the kinds that are better than the one that is on. */
static void add_better_mmap_watches(struct answer *a, const struct probes *p)
{
	const struct mmap_watch_kind *kind = probes_mmap_watch(p)->kind;
	char lost[WHY_SIZE];

	for (size_t i = 0; mmap_watch_kinds[i] != kind; i++) {
		(void)snprintf(lost, sizeof(lost), "nothing while %s is on", kind->hook);
		a->add(a, question_hook_json(mmap_watch_kinds[i]->hook,
					     probes_why_no_mmap_watch(p, i), lost));
	}
}

static void add_files(struct answer *a, const struct probed_files *files)
{
	const struct probed_file *file;

	list_for_each(file, &files->all, link)
		a->add(a, json_pack("{ss so si si sb ss?}", "kind", "library", "path",
				    text_or_null(file->path), "functions", (int)file->n_sites,
				    "processes", (int)file->n_processes, "on", !*file->why, "why",
				    *file->why ? file->why : NULL));
	if (files->n_refused)
		a->add(a, json_pack("{ss sn si si sb ss}", "kind", "library", "path", "functions",
				    0, "processes", (int)files->n_refused, "on", 0, "why",
				    "there are more files than are probed at a time"));
}

static void probe_doctor(struct question *q, struct answer *a)
{
	struct probe_question *p = probe_question_of(q);
	const char *name;

	for (size_t i = 0; i < N_PROBE_NEEDS; i++) {
		name = probe_needs[i].name;
		if (p->probes && !probe_needs[i].program) {
			add_better_mmap_watches(a, p->probes);
			name = probes_mmap_watch(p->probes)->kind->hook;
		}
		a->add(a, question_hook_json(name, p->needs.why_not[i], probe_needs[i].lost));
	}
	/* Only those that may observe see where others have their files. */
	if (p->probes && a->may_observe)
		add_files(a, probes_sweep(p->probes));
}

static size_t probe_metrics(const struct question *q, struct program ret[PROGRAMS_MAX], size_t n)
{
	return probes_metrics(probe_question_of(q)->probes, ret, n);
}

static void probe_take(struct question *q)
{
	probes_take(probe_question_of(q)->probes);
}

static void probe_count_missed(struct question *q)
{
	probes_count_missed(probe_question_of(q)->probes);
}

const struct qp *probe_question_find_qp(struct question *q, const struct qp_name *name,
					uint64_t since_ns, uint64_t until_ns)
{
	struct probes *p = probe_question_of(q)->probes;

	if (!p)
		return NULL;
	probes_take_calls(p);
	return qps_find(probes_qps(p), name, since_ns, until_ns);
}

const struct question_kind question_probes = {
	.unseen = "calls of CUDA, NCCL and verbs, and events of weightd, are not seen",
	.open = probe_open,
	.close = probe_close,
	.answer = probe_answer,
	.doctor = probe_doctor,
	.metrics = probe_metrics,
	.take = probe_take,
	.count_missed = probe_count_missed,
};

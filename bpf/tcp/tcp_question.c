/*
 * The collector owns the meter: these questions read it.
 */
#include "bpf/tcp/tcp_question.h"

#include <stdlib.h>

#include "bpf/tcp/hook.h"
#include "bpf/tcp/meter-bpf.h"
#include "bpf/tcp/meter.h"
#include "ipc/base/list.h"

struct hooks_question {
	struct question question;
	struct findings findings;
};

static struct question *hooks_open(struct collector *c, const char *off)
{
	struct hooks_question *h = calloc(1, sizeof(*h));

	(void)off;
	if (!h)
		return NULL;
	h->question = (struct question){.kind = &question_hooks, .collector = c};
	return &h->question;
}

static void hooks_close(struct question *q)
{
	free(container_of(q, struct hooks_question, question));
}

static void hooks_doctor(struct question *q, struct answer *a)
{
	struct findings *findings = &container_of(q, struct hooks_question, question)->findings;

	hooks_look(findings);
	for (size_t i = 0; i < N_HOOKS; i++)
		a->add(a, question_hook_json(hooks[i].name, findings->why_not[i], hooks[i].lost));
}

static size_t hooks_metrics(const struct question *q, struct program ret[PROGRAMS_MAX], size_t n)
{
	return programs_add(meter_object(q->collector->meter), ret, n);
}

const struct question_kind question_hooks = {
	.open = hooks_open,
	.close = hooks_close,
	.doctor = hooks_doctor,
	.metrics = hooks_metrics,
};

static struct question *meter_open(struct collector *c, const char *off)
{
	struct question *q = calloc(1, sizeof(*q));

	(void)off;
	if (q)
		*q = (struct question){.kind = &question_meter, .collector = c};
	return q;
}

static void meter_close(struct question *q)
{
	free(q);
}

static void meter_doctor(struct question *q, struct answer *a)
{
	struct meter *m = q->collector->meter;
	const char *why_not_bpf = q->collector->why_not_bpf;
	char blind[WHY_SIZE] = "";

	if (m->kind->check)
		(void)m->kind->check(m, blind);
	a->add(a, json_pack("{ss ss ss? ss? ss?}", "kind", "meter", "meter", m->kind->name, "why",
			    *why_not_bpf ? why_not_bpf : NULL, "limits",
			    *m->limits ? m->limits : NULL, "blind", *blind ? blind : NULL));
}

const struct question_kind question_meter = {
	.open = meter_open,
	.close = meter_close,
	.doctor = meter_doctor,
};

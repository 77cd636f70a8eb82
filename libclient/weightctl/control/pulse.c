#include "libclient/weightctl/control/pulse.h"

#include <errno.h>

#include "libclient/weightctl/output/progress.h"

#define PATIENCE_NS ((uint64_t)AGENT_ANSWER_S * 1000000000)

void pulse_init(struct pulse *p, const struct cli *cli)
{
	*p = (struct pulse){.cli = cli, .agent.fd = -1, .since_ns = progress_now_ns()};
}

void pulse_deinit(struct pulse *p)
{
	agent_deinit(&p->agent);
}

void pulse_heard(struct pulse *p)
{
	agent_deinit(&p->agent);
	p->since_ns = progress_now_ns();
}

int pulse_timeout_ms(const struct pulse *p)
{
	uint64_t now = progress_now_ns(), deadline_ns = p->since_ns + PATIENCE_NS;

	return now >= deadline_ns ? 0 : (int)((deadline_ns - now) / 1000000) + 1;
}

/* Past syncs, none of them. */
static int ask(struct pulse *p)
{
	p->since_ns = progress_now_ns();
	if (agent_open(p->cli, &p->agent))
		return EXIT_FAILED;
	return agent_ask(&p->agent, json_pack("{s:s, s:i}", "op", "history", "n", 0));
}

int pulse_look(struct pulse *p)
{
	bool is_late = progress_now_ns() - p->since_ns >= PATIENCE_NS;
	cleanup(json_decrefp) json_t *packet = NULL;
	int r;

	if (p->agent.fd < 0)
		return is_late ? ask(p) : 0;
	r = agent_take(&p->agent, &packet);
	if (r == -EAGAIN)
		return is_late ? agent_is_silent(&p->agent) : 0;
	if (r == 0)
		pulse_heard(p); /* whatever it says */
	return r;
}

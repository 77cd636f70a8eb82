#include "server/sync/phase_time.h"

#include "server/sync/coordinator/sync.h"
#include "server/sync/participant/participant.h"
#include "server/sync/state/trace_span.h"

static const char *const PHASES[N_ROLES][METRICS_PHASES] = {
	[ROLE_PUBLISHER] = {[PHASE_ATTACH] = "attach",
			    [PHASE_DIGEST] = "digest",
			    [PHASE_PREPARE] = "prepare",
			    [PHASE_COMPOSE] = "compose",
			    [PHASE_OPEN] = "open",
			    [PHASE_BYTES] = "bytes",
			    [PHASE_STOP] = "stop",
			    [PHASE_VERIFY] = "verify",
			    [PHASE_COMMIT] = "commit"},
	[ROLE_MEMBER] = {[PARTICIPANT_WANT] = "want",
			 [PARTICIPANT_CREATE] = "create",
			 [PARTICIPANT_READY] = "ready",
			 [PARTICIPANT_OPENING] = "opening",
			 [PARTICIPANT_OPEN] = "open",
			 [PARTICIPANT_MOVING] = "bytes",
			 [PARTICIPANT_VERIFYING] = "verify",
			 [PARTICIPANT_VERIFIED] = "verified",
			 [PARTICIPANT_RECORDING] = "record",
			 [PARTICIPANT_PUBLISHING] = "commit"},
};

const char *phase_time_name(enum metrics_role role, unsigned phase)
{
	return PHASES[role][phase];
}

static void phase_time_add(struct agent *a, enum metrics_role role, const char *sync,
			   struct metrics_stay *s, unsigned phase, uint64_t now)
{
	if (s->since_ns && s->phase == phase)
		return;
	if (s->since_ns) {
		a->metrics.phase_ns[role][s->phase] += now - s->since_ns;
		if (PHASES[role][s->phase])
			trace_span_phase(a, sync, metrics_role(role), PHASES[role][s->phase],
					 s->since_ns, now);
	}
	*s = (struct metrics_stay){.phase = phase, .since_ns = now};
}

void phase_time_step(struct agent *a)
{
	uint64_t now = agent_now(a);
	struct sync *s;
	struct participant *p;

	list_for_each(s, &a->syncs, link)
		phase_time_add(a, ROLE_PUBLISHER, s->id, &s->stay, s->phase, now);
	list_for_each(p, &a->participants, link)
		if (p->coordinator != AGENT_SELF)
			phase_time_add(a, ROLE_MEMBER, p->sync, &p->stay, p->state, now);
}

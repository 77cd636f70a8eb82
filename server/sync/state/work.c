#include "server/sync/state/work.h"

#include "server/sync/state/agent_state.h"
#include "server/sync/state/trace_span.h"

int work_start(struct agent *a, struct work *w, enum job_kind kind, const char *buffer,
	       char why[WHY_SIZE])
{
	w->kind = kind;
	return a->env->job_start(a->userdata, kind, buffer, w, &w->job, why);
}

void work_tell(struct agent *a, struct work *w, json_t *message, const int *fds, unsigned n_fds)
{
	if (w->job && message)
		a->env->job_tell(a->userdata, w->job, message, fds, n_fds);
	json_decref(message);
}

void work_end(struct agent *a, struct work *w)
{
	trace_span_drop(a, w);
	if (w->job)
		a->env->job_end(a->userdata, w->job);
	w->job = NULL;
}

#include "bpf/event/event_cause.h"

#include <string.h>

#include "bpf/base/json_null.h"
#include "bpf/probe/probes.h"

struct origin origin_of(const struct probes *p, const struct probe_call *c)
{
	struct origin origin = {.number = probes_number(p), .ns = c->ns, .pid = (pid_t)c->tgid};

	memcpy(origin.comm, c->comm, sizeof(origin.comm) - 1);
	return origin;
}

void origin_set(json_t *act, const struct origin *origin)
{
	(void)json_object_set_new(
		act, "from",
		!origin ? json_null()
			: json_pack("{sI sI so sI}", "number", (json_int_t)origin->number, "pid",
				    (json_int_t)origin->pid, "comm", known_text(origin->comm), "ns",
				    (json_int_t)origin->ns));
}

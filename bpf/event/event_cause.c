#include "bpf/event/event_cause.h"

#include <string.h>

#include "bpf/base/json_null.h"

struct event_cause event_cause_of(uint64_t number, uint64_t ns, pid_t pid,
				  const char comm[COMM_SIZE])
{
	struct event_cause cause = {.number = number, .ns = ns, .pid = pid};

	memcpy(cause.comm, comm, sizeof(cause.comm) - 1);
	return cause;
}

void event_cause_set(json_t *event, const struct event_cause *cause)
{
	(void)json_object_set_new(
		event, "from",
		!cause ? json_null()
		       : json_pack("{sI sI so sI}", "number", (json_int_t)cause->number, "pid",
				   (json_int_t)cause->pid, "comm", text_or_null(cause->comm), "ns",
				   (json_int_t)cause->ns));
}

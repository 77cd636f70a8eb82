#include "server/sync/coordinator/repair_refusal.h"

void repair_refusal_send(struct agent *a, unsigned peer, const char *buffer, const char *code,
			 const char *why)
{
	agent_send(a, peer,
		   json_pack("{s:s, s:s, s:s, s:s}", "type", "cannot-repair", "buffer", buffer,
			     "code", code, "why", why));
}

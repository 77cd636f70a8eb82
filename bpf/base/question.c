#include "bpf/base/question.h"

json_t *question_hook_json(const char *hook, const char *why, const char *lost)
{
	return json_pack("{ss ss sb ss? ss}", "kind", "hook", "hook", hook, "on", !*why, "why",
			 *why ? why : NULL, "lost", lost);
}

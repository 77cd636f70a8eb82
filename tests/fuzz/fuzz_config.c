/* Any bytes as weightd.conf: what is accepted lies within the bounds of the table. */
#include <string.h>

#include "ipc/channel.h"
#include "server/state/buffer_names.h"
#include "server/state/config.h"
#include "tests/fuzz/fuzz.h"

static void check_names(const struct config *c)
{
	struct channel_peer peer = {.uid = 1, .gid = 1};
	const struct name_rule *rule = buffer_names_find(c->names, "llama/7b");

	if (rule) {
		MUST(!strncmp(name_rule_pattern(rule), "llama/7b",
			      strcspn(name_rule_pattern(rule), "*")));
		MUST(name_rule_list(rule)[0]);
		(void)name_rule_allows(rule, &peer);
	}
}

static void check_accepted(const struct config *c)
{
	MUST(memchr(c->socket, '\0', sizeof(c->socket)));
	MUST(c->socket_mode <= 0777 && c->mode <= 0666);
	MUST(c->keep >= 1 && c->keep <= 32);
	check_names(c);
	for (unsigned i = 0; i < c->n_overrides; i++) {
		MUST(c->overrides[i].uid != (uid_t)-1);
		MUST(c->overrides[i].kinds < 1u << QUOTA_KINDS);
		for (unsigned j = 0; j < i; j++)
			MUST(c->overrides[i].uid != c->overrides[j].uid);
	}
}

FUZZ_CONFIG(check_accepted)

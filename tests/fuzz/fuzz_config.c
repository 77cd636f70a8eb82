/* Any bytes as weightd.conf: what is accepted lies within the bounds of the table. */
#include <string.h>

#include "server/state/config.h"
#include "tests/fuzz/fuzz.h"

static void check_accepted(const struct config *c)
{
	MUST(memchr(c->socket, '\0', sizeof(c->socket)));
	MUST(c->socket_mode <= 0777 && c->mode <= 0666);
	MUST(c->keep >= 1 && c->keep <= 32);
	for (unsigned i = 0; i < c->n_overrides; i++) {
		MUST(c->overrides[i].uid != (uid_t)-1);
		MUST(c->overrides[i].kinds < 1u << QUOTA_KINDS);
		for (unsigned j = 0; j < i; j++)
			MUST(c->overrides[i].uid != c->overrides[j].uid);
	}
}

FUZZ_CONFIG(check_accepted)

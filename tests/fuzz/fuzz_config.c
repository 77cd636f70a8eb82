/* Any bytes as weightd.conf: what is accepted lies within the bounds of the table. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "server/config.h"

#define MUST(condition)                                                                            \
	do {                                                                                       \
		if (!(condition))                                                                  \
			abort();                                                                   \
	} while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct config c;

	log_init((enum log_level)0); /* nothing is read of it here */
	if (config_parse("fuzz.conf", (const char *)data, size, &c) < 0)
		return 0;
	check_accepted(&c);
	config_deinit(&c);
	return 0;
}

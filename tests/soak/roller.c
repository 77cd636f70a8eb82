/*
 * roller LEDGER NAME N: publishes two versions, and then rolls back and forth between them N times
 *
 * In between it announces that it is ready, and waits for a line, so that readers can attach.
 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/soak/maker.h"

static void fail(const struct maker *m, const char *what)
{
	(void)fprintf(stderr, "roller: %s: %s\n", what, weightd_error(m->w));
	exit(EXIT_FAILURE);
}

int main(int argc, char **argv)
{
	struct maker m;
	char line[8];

	if (argc != 4)
		return 2;
	maker_init(&m, argv[1]);
	for (int i = 0; i < 2; i++)
		if (maker_publish(&m, argv[2], NULL) < 0)
			fail(&m, "publish");
	(void)puts("ready");
	(void)fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		return 1;
	for (int i = 0; i < atoi(argv[3]); i++) {
		uint64_t version = (uint64_t)i % 2 + 1, got;

		if (weightd_rollback(m.w, argv[2], NULL, version, &got) < 0 || got != version)
			fail(&m, "rollback");
	}
	return 0;
}

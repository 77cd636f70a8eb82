/*
 * writer LEDGER SEALED REUSABLE EXCLUSIVE: publishes versions of three buffers in turn until it is killed
 */
#include <errno.h>
#include <string.h>

#include "tests/soak/maker.h"

#define PAUSE_MS 20

/*
 * EBUSY: the writer before us died together with the server, which waits for it; ESTALE: the server was away
 * for longer than it waits.
 */
static void report(struct maker *m, const char *name, int error)
{
	if (error != -EBUSY && error != -ESTALE)
		ledger_fault(m->ledger, &m->ledger->n_errors, "%s: publish: %s (%s)", name,
			     strerror(-error), weightd_error(m->w));
}

int main(int argc, char **argv)
{
	const struct weightd_create_options options[] = {
		{.size = sizeof(options[0]), .keep = 2},
		{.size = sizeof(options[0]), .keep = 1, .reusable = true},
		{
			.size = sizeof(options[0]),
			.keep = 1,
			.exclusive = true,
			.policy = WEIGHTD_EVICT,
			.pause_timeout_ms = PAUSE_MS,
		},
	};
	struct maker m;

	if (argc != 5)
		return 2;
	maker_init(&m, argv[1]);
	for (unsigned i = 0;; i = (i + 1) % 3) {
		int r = maker_publish(&m, argv[2 + i], &options[i]);

		if (r < 0)
			report(&m, argv[2 + i], r);
	}
}

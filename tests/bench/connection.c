#include "tests/bench/connection.h"

#include <string.h>

#include "tests/bench/stopwatch.h"

struct weightd *connect_anew(void)
{
	struct weightd *w;
	int r = weightd_new(&w);

	if (r < 0)
		stopwatch_fail("no connection: %s", strerror(-r));
	if (weightd_connect(w, NULL) < 0)
		stopwatch_fail("%s", weightd_error(w));
	return w;
}

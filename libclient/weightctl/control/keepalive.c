#include "libclient/weightctl/control/keepalive.h"

#include <errno.h>

#include "libclient/weightctl/output/clock.h"

#define PATIENCE_NS ((uint64_t)CONTROL_ANSWER_S * 1000000000)

void keepalive_init(struct keepalive *p, const struct cli *cli)
{
	*p = (struct keepalive){.cli = cli, .control.fd = -1, .since_ns = clock_now_ns()};
}

void keepalive_deinit(struct keepalive *p)
{
	control_client_deinit(&p->control);
}

void keepalive_reset(struct keepalive *p)
{
	control_client_deinit(&p->control);
	p->since_ns = clock_now_ns();
}

int keepalive_timeout_ms(const struct keepalive *p)
{
	uint64_t now = clock_now_ns(), deadline_ns = p->since_ns + PATIENCE_NS;

	return now >= deadline_ns ? 0 : (int)((deadline_ns - now) / 1000000) + 1;
}

/* Past syncs, none of them. */
static int keepalive_ask(struct keepalive *p)
{
	p->since_ns = clock_now_ns();
	if (control_client_open(p->cli, &p->control))
		return EXIT_FAILED;
	return control_client_ask(&p->control, json_pack("{s:s, s:i}", "op", "history", "n", 0));
}

int keepalive_check(struct keepalive *p)
{
	bool is_late = clock_now_ns() - p->since_ns >= PATIENCE_NS;
	cleanup(json_decrefp) json_t *packet = NULL;
	int r;

	if (p->control.fd < 0)
		return is_late ? keepalive_ask(p) : 0;
	r = control_client_take(&p->control, &packet);
	if (r == -EAGAIN)
		return is_late ? control_client_is_silent(&p->control) : 0;
	if (r == 0)
		keepalive_reset(p); /* any packet will do */
	return r;
}

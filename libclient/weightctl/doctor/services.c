/*
 * Checks of weightd-sync and weightd-trace. Both are optional; a machine that has sync.conf wants the first.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "libclient/weightctl/control/control_client.h"
#include "libclient/weightctl/doctor/check.h"
#include "libclient/weightctl/output/clock.h"
#include "libclient/weightctl/output/json_field.h"
#include "libclient/weightctl/output/size.h"

#define SYNC_CONF "/etc/weightd/sync.conf"
#define DAY_NS 86400000000000u
#define SOON_DAYS 14
#define CERTIFICATE_END "weightd_sync_certificate_expiry_seconds"

/* Asks a service; NULL, and `ret_why`, which the caller frees: it does not reply. */
static json_t *ask_service(const struct cli *cli, enum verb_peer peer, const char *op,
			   char **ret_why)
{
	const struct verb verb = {.name = cli->verb->name, .peer = peer};
	struct cli as = *cli;
	json_t *rows = NULL;

	as.verb = &verb;
	cli_error_capture(ret_why);
	if (control_client_rows(&as, json_pack("{s:s}", "op", op), &rows))
		rows = NULL;
	cli_error_capture(NULL);
	return rows;
}

/* A service that does not run is no fault where nothing asks for it. */
static bool check_runs(const struct cli *cli, enum verb_peer peer, const char *name,
		       enum check_state absent, struct checks *c)
{
	const struct verb verb = {.name = cli->verb->name, .peer = peer};
	struct cli as = *cli;
	int r;

	as.verb = &verb;
	r = control_client_probe(&as);
	if (r != -ENOENT && r != -ECONNREFUSED)
		return true;
	checks_add(c, name, absent,
		   absent == CHECK_OK ? NULL
				      : "this machine has " SYNC_CONF
					": start the agent (systemctl enable --now "
					"weightd-sync.service); its journal has the reason if it "
					"ended",
		   "does not run");
	return false;
}

/* The first sample of a metric; 0: there is none. */
static uint64_t first_sample_ns(const json_t *rows, const char *name)
{
	const json_t *row;
	size_t i;

	json_array_foreach(rows, i, row)
	{
		const char *metric = json_field_text(row, "metric");

		if (metric && !strcmp(metric, name))
			return json_field_number(json_array_get(json_object_get(row, "samples"), 0),
						 "value_ns", 0);
	}
	return 0;
}

static void check_certificate(const struct cli *cli, struct checks *c)
{
	static const char way[] = "make a new one on the machine with the key of the CA (weightctl pki "
				  "node), and put it in place; the agent reads it at once";
	cleanup(cli_freep) char *why = NULL;
	cleanup(json_decrefp) json_t *rows = ask_service(cli, PEER_AGENT, "metrics", &why);
	uint64_t end_ns = first_sample_ns(rows, CERTIFICATE_END), now_ns = clock_ns(CLOCK_REALTIME);
	uint64_t days = end_ns > now_ns ? (end_ns - now_ns) / DAY_NS : 0;

	if (!end_ns)
		checks_add(c, "certificate", CHECK_NOTE, why, "its end is unknown");
	else if (end_ns <= now_ns)
		checks_add(c, "certificate", CHECK_ERROR, way,
			   "expired: other nodes refuse this one");
	else if (days < SOON_DAYS)
		checks_add(c, "certificate", CHECK_WARNING, way, "expires in %" PRIu64 " days",
			   days);
	else
		checks_add(c, "certificate", CHECK_OK, NULL, "valid for %" PRIu64 " days", days);
}

static void check_nodes(const json_t *rows, struct checks *c)
{
	size_t i, n = 0, n_down = 0;
	const char *why = NULL;
	const json_t *row;

	json_array_foreach(rows, i, row)
	{
		const char *state = json_field_text(row, "state");

		if (!state || !strcmp(state, "self"))
			continue;
		n++;
		if (!strcmp(state, "up"))
			continue;
		if (!n_down++)
			why = json_field_text(row, "why");
	}
	if (n_down)
		checks_add(c, "nodes", CHECK_WARNING,
			   why ? why : "'weightctl nodes' has the reason of each",
			   "%zu of %zu other nodes are down", n_down, n);
	else
		checks_add(c, "nodes", CHECK_OK, NULL, "%zu of %zu other nodes are up", n, n);
}

static void check_agent(const struct cli *cli, struct checks *c)
{
	enum check_state absent = access(SYNC_CONF, F_OK) == 0 ? CHECK_WARNING : CHECK_OK;
	cleanup(cli_freep) char *why = NULL;
	cleanup(json_decrefp) json_t *rows = NULL;

	if (!check_runs(cli, PEER_AGENT, "sync agent", absent, c))
		return;
	rows = ask_service(cli, PEER_AGENT, "nodes", &why);
	if (!rows) {
		checks_add(c, "sync agent", CHECK_WARNING, why, "does not reply");
		return;
	}
	checks_add(c, "sync agent", CHECK_OK, NULL, "runs");
	check_certificate(cli, c);
	check_nodes(rows, c);
}

static void check_tracer(const struct cli *cli, struct checks *c)
{
	cleanup(cli_freep) char *why = NULL;
	cleanup(json_decrefp) json_t *rows = NULL;

	if (!check_runs(cli, PEER_TRACER, "tracer", CHECK_OK, c))
		return;
	rows = ask_service(cli, PEER_TRACER, "metrics", &why);
	if (rows)
		checks_add(c, "tracer", CHECK_OK, NULL,
			   "runs; 'weightctl trace doctor' has its features");
	else
		checks_add(c, "tracer", CHECK_WARNING, why, "does not reply");
}

void doctor_check_services(const struct cli *cli, struct checks *c)
{
	check_agent(cli, c);
	check_tracer(cli, c);
}

/*
 * OpenMetrics: the counters of a service, as text for Prometheus
 */
#pragma once

#include "libclient/weightctl/cli.h"

/* A verb that asks its peer for "metrics" and takes no arguments, only --output beside what its peer has. */
int openmetrics_run(struct cli *cli, int argc, char *argv[], const struct option *longs);

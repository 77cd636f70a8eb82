/*
 * OpenMetrics: the counters of a service, as text for Prometheus
 */
#pragma once

#include <jansson.h>

#include "libclient/weightctl/cli.h"

/* A verb that asks its peer for "metrics" and takes no arguments, only --output beside what its peer has. */
int openmetrics_run(struct cli *cli, int argc, char *argv[], const struct option *longs);

/* Reads the options of a verb that takes no arguments: the file of --output, or NULL. */
const char *openmetrics_path(struct cli *cli, int argc, char *argv[], const struct option *longs);

/* Rows as a service has them, "metric", "type", "unit", "help" and "samples", as text that the caller frees. */
char *openmetrics_text(const json_t *rows);

/* Writes the rows to the file `path`, or to standard output if that is NULL. 0, or EXIT_FAILED after printing why. */
int openmetrics_write(const json_t *rows, const char *path);

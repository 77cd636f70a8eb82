/*
 * OpenMetrics: what a service counted, as text for Prometheus
 */
#pragma once

#include <jansson.h>

/*
 * The rows of an answer to "metrics", for `path`, or standard output where that is NULL. 0, or EXIT_FAILED after
 * telling why.
 */
int openmetrics_write(const json_t *rows, const char *path);

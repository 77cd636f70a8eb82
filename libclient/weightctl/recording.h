/*
 * What weightctl trace record wrote as lines of JSON
 */
#pragma once

#include <jansson.h>

#include "libclient/weightctl/cli.h"

/* Returns 0, or EXIT_FAILED after telling why. The packet is the caller's of the function below. */
typedef int (*recording_fn)(const json_t *packet, void *context);

/*
 * Calls `fn` for each line of a file, "-" for standard input, until one fails. What is not a recording is told with
 * its line. 0 or EXIT_FAILED.
 */
int recording_read(const char *path, recording_fn fn, void *context);

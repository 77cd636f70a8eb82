/*
 * What weightctl trace record wrote, by lines: believed no more than any file from elsewhere
 */
#pragma once

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>

struct recording {
	const char *path;
	char *node; /* whose it is: the name of the file, without what stands behind the last dot */
	FILE *f;
	char *line;
	uint64_t n_lines; /* in it, once it was checked */
	int64_t realtime_ns; /* what is to be added to its moments to have them since 1970 */
	int64_t first_ns; /* the first moment it tells of, since 1970; INT64_MAX: of none */
};

/* Reads all of it once: 0, or EXIT_FAILED after telling the file and the line. To be deinitialised in any case. */
int recording_open(const char *path, struct recording *ret);
/* Reads all of it again. Whoever is told of a packet may keep it. */
int recording_read(struct recording *r, void (*tell)(void *context, json_t *packet), void *context);
void recording_deinit(struct recording *r);

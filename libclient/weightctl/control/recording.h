/*
 * Recordings of weightctl trace record, line by line: untrusted, like any other file
 */
#pragma once

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>

struct recording {
	const char *path;
	char *node; /* its node: the name of the file, without the last dot and all behind it */
	FILE *f;
	char *line;
	uint64_t n_lines; /* in it, once it was checked */
	int64_t realtime_ns; /* offset from its times to times since 1970 */
	int64_t first_ns; /* the earliest time in it, since 1970; INT64_MAX: none */
};

/*
 * Checks all of it once: 0, or EXIT_FAILED after printing the file and the line. Must be deinitialised in any case.
 */
int recording_open(const char *path, struct recording *ret);
/* Reads all of it again. The callback may keep the packet. */
int recording_read(struct recording *r, void (*tell)(void *context, json_t *packet), void *context);
void recording_deinit(struct recording *r);

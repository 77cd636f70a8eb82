/*
 * Files of a save
 */
#pragma once

#include <stdint.h>

#include "libclient/connection/sentence.h"
#include "libclient/load/progress.h"

/* State shared by all files of a save. */
struct save_run {
	int folder_fd;
	const char *folder; /* the final place, named by sentences */
	struct progress progress;
	uint64_t done, total; /* bytes of weights */
	uint64_t needed; /* bytes of all files */
	struct sentence *s;
};

struct output {
	struct save_run *run;
	const char *path; /* in the folder; the caller's */
	int fd;
	uint64_t size; /* written so far */
	uint64_t started; /* part of `size` that the kernel was asked to write back */
};

#define OUTPUT_INIT                                                                                \
	{                                                                                          \
		.fd = -1                                                                           \
	}

/* Creates a new file, and the folders in its path; asks for the room that it will need. */
int output_open(struct output *o, struct save_run *run, const char *path, uint64_t size);
int output_write(struct output *o, const void *data, uint64_t n);
/* Counts these bytes as progress, too. -ECANCELED. */
int output_write_weights(struct output *o, const void *data, uint64_t n);
/* Waits until the file is on the disk. */
int output_finish(struct output *o);
void output_deinit(struct output *o);

/* All of the above for a small file. */
int output_file(struct save_run *run, const char *path, const void *data, uint64_t n);

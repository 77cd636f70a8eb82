/*
 * Sources
 *
 * The safetensors files named by the paths and URLs of a load, each with the index that refers to it, if there is one.
 * This step opens no safetensors file.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libclient/connection/sentence.h"
#include "libclient/image/file.h"
#include "libclient/load/folder/index.h"
#include "libclient/load/http/fetcher.h"
#include "weightd.h"

#define SOURCE_NO_INDEX UINT32_MAX

struct source {
	char *path; /* or a URL with its query, which is not printed */
	uint32_t index; /* in sources::indexes, or SOURCE_NO_INDEX */
	uint32_t index_file; /* number of the file within that index */
};

struct source_index {
	struct file file; /* stays open, to see whether it changes */
	struct index index;
};

struct sources {
	weightd_note_fn note; /* may be NULL */
	void *userdata;
	struct fetcher *fetcher; /* NULL: no source is a URL */
	bool (*is_stopped)(void *planner); /* asked while a file is opened */
	void *planner;
	struct source *list; /* those of one index stand side by side */
	size_t n, max;
	struct source_index *indexes;
	size_t n_indexes, max_indexes;
};

/*
 * Adds what `path` leads to: a file as it is, the files of an index, or those a directory stands for. `ss` has a fetcher by
 * then if it is a URL.
 */
int sources_add(struct sources *ss, const char *path, struct sentence *s);

/* Opens a path, or a URL; a checkpoint of torch as the safetensors file that is made of it. */
int sources_open(const struct sources *ss, const char *path, struct file *ret, struct sentence *s);

void sources_deinit(struct sources *ss);

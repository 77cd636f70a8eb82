/*
 * The small files in a model directory
 *
 * Its configurations, tokenizers, chat templates and code, by their names, in sub-folders too. Weights are none of them,
 * with one exception: the small modules of a sentence-transformers model beside its transformer. A sub-folder with other
 * weights (a checkpoint of a training, another format) is another model, and is left out, like hidden files.
 *
 * A link is followed within the directory, and from a snapshot of a Hugging Face cache to its blobs. Other links are
 * left out: a version must not show its readers a file that its directory does not have.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libclient/connection/sentence.h"
#include "weightd.h"

struct companion {
	char *path; /* in the directory */
	uint64_t size;
};

struct companion_folder {
	const char *path; /* borrowed */
	const char *weights; /* path of the weights in the directory, borrowed */
	bool configurations; /* only what has attributes: config.json and model_index.json */
	int fd;
	int blobs_fd; /* of a snapshot; -1: it is none */
	struct weightd_files *modules; /* its paths: folders of modules of sentence-transformers; NULL: none */
	struct companion *list;
	size_t n, max;
	char *left_out; /* the first link that leaves the directory */
	size_t n_left_out;
	struct sentence *s;
};

/* Lists the directory `path`; `configurations` as above. The sentence of a failure names the file. */
int companion_folder_init(struct companion_folder *c, const char *path, const char *weights,
			  bool configurations, struct sentence *s);
void companion_folder_deinit(struct companion_folder *c);

/* Adds all of the files to `f`. -EFBIG: they are too large; the sentence names the largest. */
int companion_folder_read(struct companion_folder *c, struct weightd_files *f);

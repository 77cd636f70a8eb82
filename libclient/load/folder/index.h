/*
 * The index of a checkpoint in several files
 *
 *	{"metadata": {...}, "weight_map": {"tensor": "model-00001-of-00002.safetensors", ...}}
 *
 * The map has for each tensor the file with *the* tensor of that name. Other files, and other tensors in
 * these files, are leftovers that must not be loaded. No other part of it is used: metadata.total_size is
 * often wrong.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "libclient/connection/sentence.h"
#include "libclient/image/file.h"
#include "libclient/image/names.h"

#define INDEX_SIZE_MAX 100000000u

struct index_entry {
	const char *tensor;
	uint32_t tensor_size;
	uint32_t file; /* in index::files */
};

struct index {
	struct index_entry *entries; /* in the order of the text */
	size_t n_entries;
	const char **files; /* paths below the directory of the index, each once, sorted */
	size_t n_files;
	struct names tensors; /* to an entry */
	char *text; /* all strings */
};

/* 0, -EBADMSG, -ENOMEM. */
int index_parse(const char *text, uint64_t size, struct index *ret, struct sentence *s);

/* Reads and parses an index file; sentences name it. */
int index_read(const struct file *f, struct index *ret, struct sentence *s);

void index_deinit(struct index *ix);

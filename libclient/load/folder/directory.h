/*
 * Directories
 *
 * The safetensors files and indexes in a directory, grouped into sets of one checkpoint.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libclient/connection/sentence.h"
#include "libclient/image/file.h"

struct directory_entry {
	char *name;
	char *stem; /* without number and suffix, the variant behind it: "model", "model.fp16" */
	uint32_t part, n_parts; /* from "-00001-of-00002"; 0 and 0: the only file */
	bool is_index, is_variant;
	bool is_taken;
};

/* Entries that belong together: an index, a file, or the parts of one whole. */
struct directory_set {
	struct directory_entry *entries;
	size_t n;
	bool has_index; /* parts that an index of the same stem speaks for */
};

struct directory {
	struct directory_entry *entries; /* sorted: sets stand together */
	size_t n, max;
	struct directory_set *sets; /* those of indexes first */
	size_t n_sets;
};

/* True for a name of an index: X.safetensors.index.json, .index.VARIANT.json or .VARIANT.index.json. */
bool directory_is_index(const char *path);

/* Lists `f`, a directory. Names that begin with a dot are left out, as a shell does. */
int directory_read(const struct file *f, struct directory *ret, struct sentence *s);

/* The set of one entry, an index or a file, with this stem; NULL: none. */
const struct directory_set *directory_find(const struct directory *d, const char *stem,
					   bool is_index);

/* Marks the file of that name as one that is loaded. */
void directory_take(struct directory *d, const char *name);

void directory_deinit(struct directory *d);

/* Any bytes as an index: what is accepted maps each tensor once, to a file in its directory or below. */
#include <string.h>

#include "libclient/load/folder/index.h"
#include "tests/fuzz/fuzz.h"

/* Components with a meaning, between single slashes. */
static void check_path(const char *path)
{
	for (;;) {
		size_t n = strcspn(path, "/");

		MUST(n > 0 && !(n == 1 && *path == '.') && !(n == 2 && !memcmp(path, "..", 2)));
		if (!path[n])
			return;
		path += n + 1;
	}
}

static void check_accepted(const struct index *ix)
{
	uint32_t entry;

	MUST(ix->n_entries > 0 && ix->n_files > 0);
	for (size_t i = 0; i < ix->n_files; i++) {
		check_path(ix->files[i]);
		MUST(i == 0 || strcmp(ix->files[i - 1], ix->files[i]) < 0);
	}
	for (size_t i = 0; i < ix->n_entries; i++) {
		const struct index_entry *e = &ix->entries[i];

		MUST(e->file < ix->n_files);
		MUST(names_find(&ix->tensors, e->tensor, e->tensor_size, &entry) && entry == i);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct sentence s = {0};
	struct index ix;

	if (index_parse((const char *)data, size, &ix, &s) < 0) {
		MUST(s.text[0] && memchr(s.text, '\0', sizeof(s.text)));
		for (const char *p = s.text; *p; p++)
			MUST((unsigned char)*p >= 0x20 && *p != 0x7f);
		return 0;
	}
	check_accepted(&ix);
	index_deinit(&ix);
	return 0;
}

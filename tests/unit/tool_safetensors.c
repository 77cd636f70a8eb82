/*
 * The parsers of the loader for tests that are not written in C: tool_safetensors files|indexes. Standard input
 * is a row of files or of indexes, each behind its length (u32, little endian). For each of them one line is
 * written: the number of the rule that it breaks and the sentence; or 0, and for each tensor
 * NAME:DTYPE:SHAPE:BEGIN:END, or TENSOR:FILE, names in hexadecimal digits.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/dtype.h"
#include "libclient/image/safetensors.h"
#include "libclient/load/folder/index.h"

static void print_name(const char *before, const char *name, size_t n)
{
	(void)fputs(before, stdout);
	for (size_t i = 0; i < n; i++)
		(void)printf("%02x", (unsigned char)name[i]);
}

static void print_tensors(const struct safetensors *st)
{
	for (size_t i = 0; i < st->n_tensors; i++) {
		const struct safetensors_tensor *t = &st->tensors[i];

		print_name(" ", t->name, t->name_size);
		(void)printf(":%s:", dtype_name(t->dtype));
		for (uint32_t k = 0; k < t->n_dims; k++)
			(void)printf("%" PRIu64 ",", safetensors_shape(st, t)[k]);
		(void)printf(":%" PRIu64 ":%" PRIu64, t->begin, t->end);
	}
}

static int judge_file(const uint8_t *bytes, uint32_t n, struct safetensors *st, struct sentence *s)
{
	uint8_t prefix[SAFETENSORS_PREFIX_SIZE] = {0};
	uint64_t header_size;
	int r;

	memcpy(prefix, bytes, n < sizeof(prefix) ? n : sizeof(prefix));
	r = safetensors_parse_prefix(prefix, n, &header_size, s);
	if (r)
		return r;
	return safetensors_parse((const char *)bytes + sizeof(prefix), header_size,
				 n - sizeof(prefix) - header_size, st, s);
}

static void print_file(const uint8_t *bytes, uint32_t n)
{
	struct safetensors st = {0};
	struct sentence s = {0};
	int r = judge_file(bytes, n, &st, &s);

	(void)printf("%d", r);
	if (r)
		(void)printf(" %s", s.text);
	else
		print_tensors(&st);
	(void)printf("\n");
	safetensors_deinit(&st);
}

static void print_index(const uint8_t *bytes, uint32_t n)
{
	struct index ix = {0};
	struct sentence s = {0};
	int r = index_parse((const char *)bytes, n, &ix, &s);

	(void)printf("%d", r);
	if (r)
		(void)printf(" %s", s.text);
	for (size_t i = 0; i < ix.n_entries; i++) {
		const struct index_entry *e = &ix.entries[i];

		print_name(" ", e->tensor, e->tensor_size);
		print_name(":", ix.files[e->file], strlen(ix.files[e->file]));
	}
	(void)printf("\n");
	index_deinit(&ix);
}

int main(int argc, char *argv[])
{
	bool indexes = argc > 1 && !strcmp(argv[1], "indexes");
	uint32_t n;

	while (fread(&n, sizeof(n), 1, stdin) == 1) {
		uint8_t *bytes = malloc(n + 1); /* malloc(0) may be NULL */

		if (!bytes || fread(bytes, 1, n, stdin) != n)
			return EXIT_FAILURE;
		(indexes ? print_index : print_file)(bytes, n);
		free(bytes);
	}
	return EXIT_SUCCESS;
}

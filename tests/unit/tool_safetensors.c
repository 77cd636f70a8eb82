/*
 * The safetensors parser for tests that are not written in C. Standard input is a row of files, each
 * behind its length (u32, little endian); for each of them one line is written: the number of the rule
 * that it breaks, 0 for none, and the sentence.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/load/safetensors.h"

static int judge(const uint8_t *bytes, uint32_t n, struct sentence *s)
{
	uint8_t prefix[SAFETENSORS_PREFIX_SIZE] = {0};
	struct safetensors st = {0};
	uint64_t header_size;
	int r;

	memcpy(prefix, bytes, n < sizeof(prefix) ? n : sizeof(prefix));
	r = safetensors_parse_prefix(prefix, n, &header_size, s);
	if (r)
		return r;
	r = safetensors_parse((const char *)bytes + sizeof(prefix), header_size,
			      n - sizeof(prefix) - header_size, &st, s);
	safetensors_deinit(&st);
	return r;
}

int main(void)
{
	uint32_t n;

	while (fread(&n, sizeof(n), 1, stdin) == 1) {
		struct sentence s = {0};
		uint8_t *bytes = malloc(n + 1); /* malloc(0) may be NULL */
		int r;

		if (!bytes || fread(bytes, 1, n, stdin) != n)
			return EXIT_FAILURE;
		r = judge(bytes, n, &s);
		(void)printf("%d %s\n", r, s.text);
		free(bytes);
	}
	return EXIT_SUCCESS;
}

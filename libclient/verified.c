#include "libclient/verified.h"

#include <stdio.h>
#include <string.h>

#include "ipc/base/num.h"

#define VALUE_MAX (16 + 2 * HASH_SIZE + 1)

static const char *const names[] = {
	[WEIGHTD_VERIFY_NONE] = "none",
	[WEIGHTD_VERIFY_XXH3] = "xxh3",
	[WEIGHTD_VERIFY_SHA256] = "sha256",
};

const char *weightd_verify_name(enum weightd_verify verify)
{
	return (size_t)verify < ARRAY_LEN(names) ? names[verify] : NULL;
}

static const char *value_of(enum weightd_verify verified, const uint8_t *digest, char ret[VALUE_MAX])
{
	int n = snprintf(ret, VALUE_MAX, "%s of xxh3:", names[verified]);

	for (size_t i = 0; i < HASH_SIZE; i++)
		(void)snprintf(ret + n + 2 * i, 3, "%02x", digest[i]);
	return ret;
}

int verified_describe(enum weightd_verify verified, struct weightd_writer *wr,
		      struct weightd_files *f, struct sentence *s)
{
	char text[VALUE_MAX];
	int r;

	if (verified == WEIGHTD_VERIFY_NONE)
		return files_set_attribute(f, VERIFIED_ATTRIBUTE, NULL, s);
	r = writer_digest_all(wr, s);
	if (r < 0)
		return sentence_set(s, r, "the bytes cannot be digested: %.300s", s->text);
	return files_set_attribute(f, VERIFIED_ATTRIBUTE,
				   value_of(verified, writer_digest(wr), text), s);
}

enum weightd_verify verified_level(const struct weightd_files *f, const uint8_t *digest)
{
	const char *value = weightd_files_value(f, VERIFIED_ATTRIBUTE);
	char text[VALUE_MAX];

	for (unsigned i = WEIGHTD_VERIFY_XXH3; value && digest && i < ARRAY_LEN(names); i++)
		if (!strcmp(value, value_of((enum weightd_verify)i, digest, text)))
			return (enum weightd_verify)i;
	return WEIGHTD_VERIFY_NONE;
}

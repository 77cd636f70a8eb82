#include "server/sync/base/preamble.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <string.h>

#include "server/sync/base/stripes.h"

static const char magic[8] = "weightd\1";
static const char magic_of_stripes[6] = "stripe";

struct layout {
	char magic[8];
	uint8_t sync[PREAMBLE_SYNC_SIZE];
	uint64_t epoch;
	uint8_t token[PREAMBLE_TOKEN_SIZE];
	uint64_t n_bytes;
	char from[PREAMBLE_NAME_SIZE];
	char to[PREAMBLE_NAME_SIZE];
};

static_assert(sizeof(struct layout) == PREAMBLE_SIZE, "no padding");

bool preamble_is_name(const char *name)
{
	size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789.-");

	return n > 0 && n < PREAMBLE_NAME_SIZE && !name[n] && name[0] != '.' && name[0] != '-';
}

static void encode_magic(const struct preamble *p, char ret[8])
{
	assert(!p->n_stripes ||
	       (p->n_stripes >= 2 && p->n_stripes <= STRIPES_MAX && p->stripe < p->n_stripes));
	memcpy(ret, magic, sizeof(magic));
	if (p->n_stripes) {
		memcpy(ret, magic_of_stripes, sizeof(magic_of_stripes));
		ret[6] = (char)p->stripe;
		ret[7] = (char)p->n_stripes;
	}
}

/* Fewer than two stripes are invalid: one stream has only one encoding. */
static int decode_magic(const char from[8], struct preamble *ret)
{
	if (memcmp(from, magic, sizeof(magic)) == 0)
		return 0;
	if (memcmp(from, magic_of_stripes, sizeof(magic_of_stripes)) != 0)
		return -EBADMSG;
	ret->stripe = (unsigned char)from[6];
	ret->n_stripes = (unsigned char)from[7];
	return ret->n_stripes >= 2 && ret->n_stripes <= STRIPES_MAX && ret->stripe < ret->n_stripes
		       ? 0
		       : -EBADMSG;
}

void preamble_encode(const struct preamble *p, uint8_t ret[PREAMBLE_SIZE])
{
	struct layout l = {.epoch = htobe64(p->epoch), .n_bytes = htobe64(p->n_bytes)};

	assert(preamble_is_name(p->from) && preamble_is_name(p->to));
	encode_magic(p, l.magic);
	memcpy(l.sync, p->sync, sizeof(l.sync));
	memcpy(l.token, p->token, sizeof(l.token));
	memcpy(l.from, p->from, strlen(p->from));
	memcpy(l.to, p->to, strlen(p->to));
	memcpy(ret, &l, sizeof(l));
}

static bool is_name_field(const char field[PREAMBLE_NAME_SIZE])
{
	const char *end = memchr(field, '\0', PREAMBLE_NAME_SIZE);

	if (!end || !preamble_is_name(field))
		return false;
	while (end < field + PREAMBLE_NAME_SIZE)
		if (*end++)
			return false;
	return true;
}

int preamble_decode(const uint8_t from[PREAMBLE_SIZE], struct preamble *ret)
{
	struct layout l;
	struct preamble p = {0};

	memcpy(&l, from, sizeof(l));
	if (decode_magic(l.magic, &p) < 0 || !is_name_field(l.from) || !is_name_field(l.to))
		return -EBADMSG;
	*ret = p;
	ret->epoch = be64toh(l.epoch);
	ret->n_bytes = be64toh(l.n_bytes);
	memcpy(ret->sync, l.sync, sizeof(l.sync));
	memcpy(ret->token, l.token, sizeof(l.token));
	memcpy(ret->from, l.from, sizeof(l.from));
	memcpy(ret->to, l.to, sizeof(l.to));
	return 0;
}

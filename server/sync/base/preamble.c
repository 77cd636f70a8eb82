#include "server/sync/base/preamble.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <string.h>

static const char magic[8] = "weightd\1";

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

void preamble_encode(const struct preamble *p, uint8_t ret[PREAMBLE_SIZE])
{
	struct layout l = {.epoch = htobe64(p->epoch), .n_bytes = htobe64(p->n_bytes)};

	assert(preamble_is_name(p->from) && preamble_is_name(p->to));
	memcpy(l.magic, magic, sizeof(magic));
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

	memcpy(&l, from, sizeof(l));
	if (memcmp(l.magic, magic, sizeof(magic)) != 0 || !is_name_field(l.from) ||
	    !is_name_field(l.to))
		return -EBADMSG;
	*ret = (struct preamble){.epoch = be64toh(l.epoch), .n_bytes = be64toh(l.n_bytes)};
	memcpy(ret->sync, l.sync, sizeof(l.sync));
	memcpy(ret->token, l.token, sizeof(l.token));
	memcpy(ret->from, l.from, sizeof(l.from));
	memcpy(ret->to, l.to, sizeof(l.to));
	return 0;
}

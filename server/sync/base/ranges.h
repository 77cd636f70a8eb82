/*
 * Ranges
 *
 * A set of bytes of a flat buffer, as disjoint ranges in ascending order, none empty and no two touching.
 * Sets that are written to were initialized before, and lose what they held; on failure they keep it.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * In a set; one that would need more is widened until it fits. In JSON a range takes 42 bytes at most, and so
 * any set fits into one packet of json_packet.h.
 */
#define RANGES_MAX 1024

struct range {
	uint64_t offset;
	uint64_t size;
};

struct ranges {
	struct range *at;
	size_t n;
};

void ranges_init(struct ranges *r);
void ranges_deinit(struct ranges *r);

/* `size` bytes from `offset` become members. -ENOMEM; -EOVERFLOW: it ends beyond UINT64_MAX. */
int ranges_add(struct ranges *r, uint64_t offset, uint64_t size);
/* All of `others` become members. */
int ranges_add_all(struct ranges *r, const struct ranges *others);
/* All of `others` leave the set. Here no range is ever widened: what does not fit is -E2BIG. */
int ranges_remove_all(struct ranges *r, const struct ranges *others);

/* Bytes in the set. */
uint64_t ranges_total(const struct ranges *r);

/*
 * The members that come first in ascending order, `n_bytes` of them: what a stream of the set has carried
 * after so many bytes.
 */
int ranges_prefix(const struct ranges *r, uint64_t n_bytes, struct ranges *ret);

/* [[offset, size], ...] */
json_t *ranges_to_json(const struct ranges *r);
/* From somebody else: ascending, disjoint, none empty, within `n_bytes`, at most RANGES_MAX. -EBADMSG. */
int ranges_from_json(const json_t *from, uint64_t n_bytes, struct ranges *ret);

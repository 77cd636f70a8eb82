/*
 * Ranges
 *
 * A set of bytes of a flat buffer, as disjoint ranges in ascending order, none empty and no two
 * touching. An output set must be initialized: its content is replaced on success, and kept on
 * failure.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * A set that would need more ranges is widened until it fits. A range takes at most 42 bytes of
 * JSON, and so any set fits into one packet of json_packet.h.
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

/* Adds `size` bytes from `offset`. -ENOMEM; -EOVERFLOW: it ends beyond UINT64_MAX. */
int ranges_add(struct ranges *r, uint64_t offset, uint64_t size);
/* Adds all of `others`. */
int ranges_add_all(struct ranges *r, const struct ranges *others);
/* Removes all of `others`. This never widens a range: too many ranges are -E2BIG. */
int ranges_remove_all(struct ranges *r, const struct ranges *others);

/* Bytes in the set. */
uint64_t ranges_total(const struct ranges *r);

/*
 * Returns the first `n_bytes` members in ascending order: the bytes that a stream of the set has
 * carried then.
 */
int ranges_prefix(const struct ranges *r, uint64_t n_bytes, struct ranges *ret);

/* [[offset, size], ...] */
json_t *ranges_to_json(const struct ranges *r);
/*
 * Parses untrusted JSON: ascending, disjoint, none empty, within `n_bytes`, at most RANGES_MAX.
 * -EBADMSG.
 */
int ranges_from_json(const json_t *from, uint64_t n_bytes, struct ranges *ret);

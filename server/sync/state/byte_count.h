/*
 * Byte counts
 *
 * Bytes of one link, or of several. On the wire: counted by the receiving engines, and by their
 * kernels. The payload is the part that is not TLS, all of it without TLS: planned before it moved,
 * and counted by the same engines. If both counts of a pair are known, they are equal. They cover
 * epochs that ended well: the bytes of a broken epoch were counted by engines that no longer exist,
 * so only the number of these epochs is known.
 */
#pragma once

#include <jansson.h>
#include <stdint.h>

/* Unknown, as the kernel cannot identify the bytes of NCCL. */
#define BYTE_COUNT_UNKNOWN UINT64_MAX

struct byte_count {
	uint64_t planned;
	uint64_t payload;
	uint64_t bytes;
	uint64_t kernel;
	uint64_t n_broken; /* broken epochs; their bytes are in none of these */
	uint64_t traced; /* `bytes` as counted by weightd-trace, which may arrive late */
	uint64_t n_traced; /* calls of byte_count_add() that are included in it */
	uint64_t n_untraced; /* calls that are not, or not yet */
};

/* Adds an engine's report about an epoch, null if it received nothing, and the planned bytes. */
void byte_count_add(struct byte_count *t, uint64_t planned, const json_t *in);

/* Adds weightd-trace's count of one of these. */
void byte_count_add_traced(struct byte_count *t, uint64_t n_bytes);

/* Adds an epoch that broke while it moved bytes. */
void byte_count_add_broken(struct byte_count *t);

/*
 * Puts "planned", "payload", "bytes" and "kernel" into a row. Unknown ones are null, and so are all
 * if only broken epochs moved bytes. Adds "broken", "traced", and "untraced": the number of
 * byte_count_add() calls that "traced" lacks.
 */
void byte_count_show(const struct byte_count *t, json_t *row);
/* The same as byte_count_add_traced(), for a row that was shown. */
void byte_count_amend(json_t *row, uint64_t n_bytes);

/*
 * Byte counts
 *
 * Bytes of one link, or of several. On the wire: counted by the engines that got them, and by those engines' kernels.
 * Of these, the payload, which is what is not TLS, all of them where there is none: planned before it moved, and counted
 * by the same engines. Where both of a pair are known, they are equal. Of epochs that were done: what one
 * that broke carried was counted by engines that are no more, and all that is known of it is that it was.
 */
#pragma once

#include <jansson.h>
#include <stdint.h>

/* A count that is not known: the kernel does not see the bytes of NCCL as such. */
#define BYTE_COUNT_UNKNOWN UINT64_MAX

struct byte_count {
	uint64_t planned;
	uint64_t payload;
	uint64_t bytes;
	uint64_t kernel;
	uint64_t n_broken; /* epochs whose bytes are in none of these */
	uint64_t traced; /* `bytes` again, as weightd-trace said, which may come late */
	uint64_t n_traced; /* what byte_count_add() added of which it did */
	uint64_t n_untraced; /* and did not, or not yet */
};

/* Adds what an engine said of an epoch, null where nothing came, beside what was planned. */
void byte_count_add(struct byte_count *t, uint64_t planned, const json_t *in);

/* Adds what weightd-trace says of one of these. */
void byte_count_add_traced(struct byte_count *t, uint64_t n_bytes);

/* Adds an epoch that broke while it moved bytes. */
void byte_count_add_broken(struct byte_count *t);

/*
 * Puts "planned", "payload", "bytes" and "kernel" into a row, null where it is unknown, as all of them are if nothing but epochs
 * that broke moved any; and "broken". So "traced", beside "untraced": of how many that added bytes these are not in it.
 */
void byte_count_show(const struct byte_count *t, json_t *row);
/* As byte_count_add_traced(), to a row that was shown. */
void byte_count_amend(json_t *row, uint64_t n_bytes);

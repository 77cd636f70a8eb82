/*
 * Tallies
 *
 * Bytes on the wire of one link, or of several: planned before they moved, counted by the engines that got them,
 * and counted by those engines' kernels. Of epochs that were done; one that broke is no link's any more.
 */
#pragma once

#include <jansson.h>
#include <stdint.h>

struct tally {
	uint64_t planned; /* 0 beside bytes: unknown, as TLS decides later how many records there are */
	uint64_t bytes;
	uint64_t kernel;
};

/* Adds what an engine said of an epoch, beside what was planned, 0 where that is unknown. */
void tally_add(struct tally *t, uint64_t planned, const json_t *in);

/* Puts "planned", null where it is unknown, "bytes" and "kernel" into a row. */
void tally_show(const struct tally *t, json_t *row);

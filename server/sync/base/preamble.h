/*
 * The preamble
 *
 * How a stream of bytes between two engines begins, and what frames it:
 *
 *	sender		preamble			payload		STREAM_END
 *	receiver			PREAMBLE_ACCEPTED			STREAM_THERE
 *
 * Whoever connects says what it brings, and proves by the token that the receiver's own agent told it to.
 * Numbers are big-endian, names end with and are followed by zeros:
 *
 *	0	"weightd\1"
 *	8	sync		8 bytes
 *	16	epoch
 *	24	token		32 bytes
 *	56	payload size
 *	64	from		64 bytes
 *	128	to		64 bytes
 *
 * One of several connections that share a stream, see stripes.h, begins with "stripe", its number from 0 on, and
 * how many they are, in a byte each; the payload is that of all. What follows are pieces with headers, and no
 * STREAM_END.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define PREAMBLE_SIZE 192
#define PREAMBLE_NAME_SIZE 64 /* with the zero at its end */
#define PREAMBLE_SYNC_SIZE 8
#define PREAMBLE_TOKEN_SIZE 32

#define PREAMBLE_ACCEPTED 0x06 /* one byte; the receiver hangs up behind the other one */
#define PREAMBLE_REFUSED 0x15

#define STREAM_WORD_SIZE 8
#define STREAM_END "that-all" /* the sender: no more comes, and none is missing */
#define STREAM_THERE "is-there" /* the receiver: all of it is in my memory */

struct preamble {
	uint8_t sync[PREAMBLE_SYNC_SIZE];
	uint64_t epoch;
	uint8_t token[PREAMBLE_TOKEN_SIZE];
	uint64_t n_bytes;
	char from[PREAMBLE_NAME_SIZE];
	char to[PREAMBLE_NAME_SIZE];
	unsigned stripe;
	unsigned n_stripes; /* 0: it is alone, and no stripe */
};

/* 1 to 63 of a-z, 0-9, '.' and '-', the first a letter or a digit. */
bool preamble_is_name(const char *name);

void preamble_encode(const struct preamble *p, uint8_t ret[PREAMBLE_SIZE]);
/* From a stranger. -EBADMSG: no preamble, or of another release. */
int preamble_decode(const uint8_t from[PREAMBLE_SIZE], struct preamble *ret);

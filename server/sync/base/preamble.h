/*
 * The preamble
 *
 * The beginning of a stream of bytes between two engines, and its framing:
 *
 *	sender		preamble			payload		STREAM_END
 *	receiver			PREAMBLE_ACCEPTED			STREAM_THERE
 *
 * The connecting side announces the payload. The token proves that the receiver's own agent ordered
 * it to connect. Numbers are big-endian, names end with and are followed by zeros:
 *
 *	0	"weightd\1"
 *	8	sync		8 bytes
 *	16	epoch
 *	24	token		32 bytes
 *	56	payload size
 *	64	from		64 bytes
 *	128	to		64 bytes
 *
 * If several connections share a stream, see stripes.h, each begins with "stripe", its number from
 * 0 on, and the number of stripes, in a byte each; the payload size is that of all stripes. Pieces
 * with headers follow, without STREAM_END.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define PREAMBLE_SIZE 192
#define PREAMBLE_NAME_SIZE 64 /* with the zero at its end */
#define PREAMBLE_SYNC_SIZE 8
#define PREAMBLE_TOKEN_SIZE 32

#define PREAMBLE_ACCEPTED 0x06 /* one byte; after PREAMBLE_REFUSED the receiver closes */
#define PREAMBLE_REFUSED 0x15

#define STREAM_WORD_SIZE 8
#define STREAM_END "that-all" /* the sender: the stream is complete */
#define STREAM_THERE "is-there" /* the receiver: all of it is in memory */

struct preamble {
	uint8_t sync[PREAMBLE_SYNC_SIZE];
	uint64_t epoch;
	uint8_t token[PREAMBLE_TOKEN_SIZE];
	uint64_t n_bytes;
	char from[PREAMBLE_NAME_SIZE];
	char to[PREAMBLE_NAME_SIZE];
	unsigned stripe;
	unsigned n_stripes; /* 0: the only connection, without pieces */
};

/* 1 to 63 of a-z, 0-9, '.' and '-', the first a letter or a digit. */
bool preamble_is_name(const char *name);

void preamble_encode(const struct preamble *p, uint8_t ret[PREAMBLE_SIZE]);
/* Parses untrusted bytes. -EBADMSG: no preamble, or of another release. */
int preamble_decode(const uint8_t from[PREAMBLE_SIZE], struct preamble *ret);

/*
 * Planned bytes
 *
 * Bytes that an engine sends over one link, known before it runs: TCP's payload, without its headers. Where TLS is
 * around them, this is what is inside it: what it adds depends on how bytes come to be cut into records.
 * Gloo puts a header before the bytes of a transfer, and each side sends one more to say that it is ready.
 */
#pragma once

#include <stdint.h>

#include "server/sync/base/ranges.h"

#define GLOO_GREETING_SIZE 208 /* what a stream over Gloo begins with, as a transfer of its own */
#define GLOO_MESH_GREETING_SIZE 248 /* what both ends of a wire of a mesh begin with */
#define GLOO_DIGESTS 16 /* of leaves, that go in one transfer */

/* From the sender to the receiver, for `n_bytes` bytes of memory. */
uint64_t tcp_planned(uint64_t n_bytes);
/* The same where several connections share them, cut into pieces of `piece` bytes: of all. */
uint64_t tcp_planned_striped(uint64_t n_bytes, uint64_t piece, unsigned n_stripes);
/* Of one of these, which got `n_pieces`, together `n_bytes` long. */
uint64_t tcp_planned_stripe(uint64_t n_bytes, uint64_t n_pieces);
/* From the receiver to the sender, over each connection. */
uint64_t tcp_planned_back(void);

/* From whoever sends in these transfers, together `n_bytes` long, to the other end; and what comes back. */
uint64_t gloo_planned(uint64_t n_transfers, uint64_t n_bytes);
uint64_t gloo_planned_back(uint64_t n_transfers);

/*
 * What one of two nodes of a mesh, where all that exchange anything are connected, sends the other: so many transfers,
 * together so long, while it gets so many, besides greeting and parting.
 */
uint64_t gloo_planned_mesh(uint64_t n_sent, uint64_t n_received, uint64_t sent_bytes);

/* A stream over Gloo, from the sender to the receiver, and what comes back: a transfer for each chunk of a range. */
uint64_t gloo_planned_stream(const struct ranges *ranges, uint64_t chunk);
uint64_t gloo_planned_stream_back(const struct ranges *ranges, uint64_t chunk);

/*
 * An average, each way of the link between two nodes that together own so many pieces, of so many bytes: terms go to
 * who owns them, results come from there. Of `n_others` leaves that have no mean a digest goes.
 */
uint64_t gloo_planned_average(uint64_t n_others, uint64_t n_pieces, uint64_t n_bytes);

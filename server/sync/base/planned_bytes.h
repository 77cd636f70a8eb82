/*
 * Planned bytes
 *
 * Bytes that an engine sends over one link, computed before it runs: TCP's payload, without its
 * headers. With TLS this is the plaintext: the overhead depends on how the bytes are cut into
 * records. Gloo puts a header before the bytes of a transfer, and each side sends another one when
 * it is ready.
 */
#pragma once

#include <stdint.h>

#include "server/sync/base/ranges.h"

#define GLOO_GREETING_SIZE 208 /* the first transfer of a stream over Gloo */
#define GLOO_MESH_GREETING_SIZE 248 /* the first transfer of each end of a wire in a mesh */
#define GLOO_DIGESTS 16 /* digests of leaves in one transfer */

/* From the sender to the receiver, for `n_bytes` bytes of memory. */
uint64_t tcp_planned(uint64_t n_bytes);
/* The same over several connections together, cut into pieces of `piece` bytes. */
uint64_t tcp_planned_striped(uint64_t n_bytes, uint64_t piece, unsigned n_stripes);
/* One of these connections, which carries `n_pieces`, together `n_bytes` long. */
uint64_t tcp_planned_stripe(uint64_t n_bytes, uint64_t n_pieces);
/* From the receiver to the sender, over each connection. */
uint64_t tcp_planned_back(void);

/*
 * From the sender of these transfers, together `n_bytes` long, to the other end; and the bytes that
 * return.
 */
uint64_t gloo_planned(uint64_t n_transfers, uint64_t n_bytes);
uint64_t gloo_planned_back(uint64_t n_transfers);

/*
 * From one node of a mesh to another: `n_sent` transfers, together `sent_bytes` long, while it
 * receives `n_received`, besides greeting and parting. Nodes that exchange anything are connected.
 */
uint64_t gloo_planned_mesh(uint64_t n_sent, uint64_t n_received, uint64_t sent_bytes);

/*
 * A stream over Gloo, from the sender to the receiver, and the bytes that return: a transfer for
 * each chunk of a range.
 */
uint64_t gloo_planned_stream(const struct ranges *ranges, uint64_t chunk);
uint64_t gloo_planned_stream_back(const struct ranges *ranges, uint64_t chunk);

/*
 * An average, each way of the link between two nodes that together own `n_pieces` pieces of
 * `n_bytes` bytes: terms go to the owner, results return from it. Each of `n_others` leaves without a
 * mean sends a digest.
 */
uint64_t gloo_planned_average(uint64_t n_others, uint64_t n_pieces, uint64_t n_bytes);

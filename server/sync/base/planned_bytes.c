#include "server/sync/base/planned_bytes.h"

#include "server/sync/base/merkle.h"
#include "server/sync/base/preamble.h"
#include "server/sync/base/stripes.h"

#define GLOO_HEADER_SIZE 48

uint64_t tcp_planned(uint64_t n_bytes)
{
	return PREAMBLE_SIZE + n_bytes + STREAM_WORD_SIZE;
}

uint64_t tcp_planned_stripe(uint64_t n_bytes, uint64_t n_pieces)
{
	return PREAMBLE_SIZE + n_bytes + (n_pieces + 1) * STRIPES_HEADER_SIZE;
}

uint64_t tcp_planned_striped(uint64_t n_bytes, uint64_t piece, unsigned n_stripes)
{
	uint64_t n_pieces = n_bytes / piece + (n_bytes % piece != 0);

	if (n_stripes < 2)
		return tcp_planned(n_bytes);
	return tcp_planned_stripe(n_bytes, n_pieces) + (n_stripes - 1) * tcp_planned_stripe(0, 0);
}

uint64_t tcp_planned_back(void)
{
	return 1 + STREAM_WORD_SIZE;
}

uint64_t gloo_planned(uint64_t n_transfers, uint64_t n_bytes)
{
	return 2 * GLOO_HEADER_SIZE * n_transfers + n_bytes;
}

uint64_t gloo_planned_back(uint64_t n_transfers)
{
	return GLOO_HEADER_SIZE * n_transfers;
}

uint64_t gloo_planned_mesh(uint64_t n_sent, uint64_t n_received, uint64_t sent_bytes)
{
	return gloo_planned(n_sent + 2, GLOO_MESH_GREETING_SIZE + STREAM_WORD_SIZE + sent_bytes) +
	       gloo_planned_back(n_received + 2);
}

static uint64_t count_chunks(const struct ranges *ranges, uint64_t chunk)
{
	uint64_t n = 0;

	for (size_t i = 0; i < ranges->n; i++)
		n += ranges->at[i].size / chunk + (ranges->at[i].size % chunk != 0);
	return n;
}

uint64_t gloo_planned_stream(const struct ranges *ranges, uint64_t chunk)
{
	return gloo_planned(count_chunks(ranges, chunk) + 1,
			    GLOO_GREETING_SIZE + ranges_total(ranges)) +
	       gloo_planned_back(2);
}

uint64_t gloo_planned_stream_back(const struct ranges *ranges, uint64_t chunk)
{
	return gloo_planned(2, PREAMBLE_TOKEN_SIZE + STREAM_WORD_SIZE) +
	       gloo_planned_back(count_chunks(ranges, chunk) + 1);
}

uint64_t gloo_planned_average(uint64_t n_others, uint64_t n_pieces, uint64_t n_bytes)
{
	uint64_t n = n_others / GLOO_DIGESTS + (n_others % GLOO_DIGESTS != 0) + n_pieces;

	return gloo_planned_mesh(n, n, n_others * MERKLE_HASH_SIZE + n_bytes);
}

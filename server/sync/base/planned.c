#include "server/sync/base/planned.h"

#include "server/sync/base/preamble.h"

#define GLOO_HEADER_SIZE 48

uint64_t tcp_planned(uint64_t n_bytes)
{
	return PREAMBLE_SIZE + n_bytes + STREAM_WORD_SIZE;
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

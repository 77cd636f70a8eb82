#include "server/sync/base/planned.h"

#include "server/sync/base/preamble.h"

uint64_t tcp_planned(uint64_t n_bytes)
{
	return PREAMBLE_SIZE + n_bytes + STREAM_WORD_SIZE;
}

uint64_t tcp_planned_back(void)
{
	return 1 + STREAM_WORD_SIZE;
}

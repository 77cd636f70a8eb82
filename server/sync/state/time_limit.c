#include "server/sync/state/time_limit.h"

/* The least for a weightd, even if absent nodes are hardly waited for. */
#define LOCAL_MIN (10 * SECOND)
#define DIGEST_RATE ((uint64_t)256 << 20) /* bytes per second; every node is faster */
#define MOVE_RATE ((uint64_t)8 << 20) /* an unmeasured link's */
#define SEND_RATE ((uint64_t)8 << 20) /* bytes per second; every link is faster */
#define FOREVER ((uint64_t)1 << 58) /* ns: nine years; a sum of several is still a valid deadline */

/* Any number of bytes at any rate. */
static uint64_t time_of(double n_bytes, uint64_t rate)
{
	double ns = n_bytes / (double)rate * 1e9;

	return ns < (double)FOREVER ? (uint64_t)ns : FOREVER;
}

uint64_t time_limit_for(const struct agent *a, uint64_t n_bytes)
{
	uint64_t answer = a->config->prepare_ns > LOCAL_MIN ? a->config->prepare_ns : LOCAL_MIN;

	return answer + time_of((double)n_bytes, DIGEST_RATE);
}

uint64_t time_limit_to_verify(const struct agent *a, uint64_t n_bytes)
{
	return time_limit_for(a, 2 * n_bytes);
}

uint64_t time_limit_to_move(const struct agent *a, uint64_t n_bytes, uint64_t rate)
{
	uint64_t move = time_of(3 * (double)n_bytes, rate ? rate : MOVE_RATE);

	if (move < 60 * SECOND)
		move = 60 * SECOND;
	return move + a->config->stall_ns + 4 * time_limit_for(a, n_bytes);
}

uint64_t time_limit_to_send(uint64_t n_bytes)
{
	return n_bytes * SECOND / SEND_RATE;
}

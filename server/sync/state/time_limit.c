#include "server/sync/state/time_limit.h"

#define LOCAL_MIN (10 * SECOND) /* for a weightd, however little is waited for who is away */
#define DIGEST_RATE ((uint64_t)256 << 20) /* bytes per second; so slow is no node */
#define MOVE_RATE ((uint64_t)8 << 20) /* of a link that was never measured */
#define SEND_RATE ((uint64_t)8 << 20) /* bytes a second; so slow is no link */
#define FOREVER ((uint64_t)1 << 58) /* ns: nine years; some of them are a deadline still */

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

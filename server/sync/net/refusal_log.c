#include "server/sync/net/refusal_log.h"

#include <string.h>

#include "ipc/base/num.h"
#include "server/base/log.h"
#include "server/sync/net/log_fields.h"

#define MINUTE_NS 60000000000u
#define LOGGED_MAX 30 /* per minute, for all causes */

/* FNV-1a: an attacker that finds a collision only hides its own messages. */
static uint64_t refusal_log_hash(uint64_t h, const char *text)
{
	for (; *text; text++)
		h = (h ^ (unsigned char)*text) * 0x100000001b3u;
	return h;
}

static bool is_news(struct refusal_log *r, uint64_t cause)
{
	for (unsigned i = 0; i < REFUSAL_LOG_MAX; i++)
		if (r->seen[i] == cause)
			return false;
	r->seen[r->next] = cause;
	r->next = (r->next + 1) % REFUSAL_LOG_MAX;
	return true;
}

void refusal_log_add(struct refusal_log *r, const char *who, const char *why)
{
	uint64_t minute = num_now_ns() / MINUTE_NS;

	if (!is_news(r, refusal_log_hash(refusal_log_hash(0xcbf29ce484222325u, who), why) | 1))
		return;
	if (minute != r->minute) {
		r->minute = minute;
		r->n_logged = 0;
	}
	if (++r->n_logged <= LOGGED_MAX)
		log_fields_write(&(struct log_fields){LOG_FIELDS_REFUSED, .uid = -1}, "%s: %s", who,
				 why);
	else if (r->n_logged == LOGGED_MAX + 1)
		log_warning(
			"more connections fail than the log should hold; the rest of this minute is left out");
}

void refusal_log_forget(struct refusal_log *r)
{
	*r = (struct refusal_log){0};
}

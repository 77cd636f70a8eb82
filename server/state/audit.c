/*
 * An audit line has fields where stderr is the journal's. Elsewhere, and when too many lines wait for the journal, it is
 * a line as any other.
 *
 * A client's words never become a field or a line of their own: control characters are replaced.
 * Nor can a client fill the journal with refusals or evictions: of each user only so many are logged
 * in a while, and then how many there were.
 */
#include "server/state/audit.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/libc.h"
#include "ipc/base/num.h"
#include "server/base/flood.h"
#include "server/base/journal.h"

const struct audit_kind audit_kinds[AUDIT_ACTIONS] = {
	[AUDIT_CREATE] = {"create", "90a8189f634c44f296c94269602a6307", LOG_LEVEL_INFO, "created",
			  "by"},
	[AUDIT_PUBLISH] = {"publish", "83c5180f60bf470196c16b8e1e27d7a9", LOG_LEVEL_INFO,
			   "published", "by"},
	[AUDIT_ROLLBACK] = {"rollback", "56a55e6629614996a3fbc6ceb01ac2c7", LOG_LEVEL_INFO,
			    "made current again", "by"},
	[AUDIT_DROP] = {"drop", "c8e3b41a9f144aa6aa479e34ec8b0384", LOG_LEVEL_INFO, "removed", "by"},
	[AUDIT_CHMOD] = {"chmod", "6a62c0445dba452cb1304afb87748df5", LOG_LEVEL_INFO,
			 "given another mode", "by"},
	[AUDIT_CHOWN] = {"chown", "7473061e92724847b206686450214425", LOG_LEVEL_INFO,
			 "given another owner", "by"},
	[AUDIT_UPDATE_BEGIN] = {"update-begin", "4c9d1b24c4364c83a7a67ec5a263614c", LOG_LEVEL_INFO,
				"being updated in place", "by"},
	[AUDIT_TORN] = {"torn", "91ad391731d64bfb974d45e3dc42a8b9", LOG_LEVEL_ERROR,
			"torn in an update", "by"},
	[AUDIT_EVICT_READER] = {"evict-reader", "7d1c332f15a9453290678607a94ab6d6",
				LOG_LEVEL_WARNING, "taken away", "from"},
	[AUDIT_KILL_READER] = {"kill-reader", "0928ea35e3bb423ea4faede45efd3e6c", LOG_LEVEL_WARNING,
			       "released by a kill", "of"},
	[AUDIT_LOSE] = {"lose", "d8fec385b3f84c11a3ac2744a07ecd40", LOG_LEVEL_ERROR,
			"lost with the process that held its memory", "of"},
	[AUDIT_RECOVER] = {"recover", "94b39648786e4cc994648ee08086603f", LOG_LEVEL_INFO,
			   "found again after a restart", "of"},
	[AUDIT_QUARANTINE] = {"quarantine", "16a9f2ca60c749738fea439a69d2dc79", LOG_LEVEL_ERROR,
			      "set aside and not served", "to"},
	[AUDIT_JOB_CREATE] = {"job-create", "060c92e17c7743f2a90ac60c0e2ac8b5", LOG_LEVEL_INFO,
			      "created", "by"},
	[AUDIT_JOB_JOIN] = {"job-join", "d5cc1895266644ce96454f3e2a839360", LOG_LEVEL_INFO,
			    "joined", "by"},
	[AUDIT_JOB_LEAVE] = {"job-leave", "553f91bd6ece47baad5fb0dc66eb6296", LOG_LEVEL_INFO,
			     "left", "by"},
	[AUDIT_JOB_REMOVE] = {"job-remove", "b8d05bfa50e84dcc9e20e755a878a0cf", LOG_LEVEL_INFO,
			      "removed", "by"},
	[AUDIT_REFUSE] = {"refuse", "fcc5bd680b4c4425bc65bf4d07a179b7", LOG_LEVEL_WARNING,
			  "refused", "to"},
};

/* Users with the same entry share its allowance. The loop's. */
static struct flood refusals[256], evictions[256];

/* Appends to the `n` bytes in `buf`; what has no room is cut off. */
__attribute__((format(printf, 4, 5))) static size_t append(char *buf, size_t size, size_t n,
							   const char *fmt, ...)
{
	va_list args;
	int more;

	va_start(args, fmt);
	more = vsnprintf(buf + n, size - n, fmt, args);
	va_end(args);
	if (more < 0)
		return n;
	return (size_t)more < size - n ? n + (size_t)more : size - 1;
}

const char *audit_message(const struct audit *a, char buf[AUDIT_MESSAGE_SIZE])
{
	const struct audit_kind *kind = &audit_kinds[a->action];
	const size_t size = AUDIT_MESSAGE_SIZE;
	size_t n = 0;

	if (a->buffer)
		n = append(buf, size, n, "'%s", a->buffer);
	if (a->buffer && a->version)
		n = append(buf, size, n, "@%" PRIu64, a->version);
	if (a->buffer)
		n = append(buf, size, n, "' on %s ", a->device ? a->device : "host");
	if (a->job)
		n = append(buf, size, n, "job '%s' ", a->job);
	n = append(buf, size, n, "%s", kind->did);
	if (a->peer)
		n = append(buf, size, n, " %s pid %d uid %u", kind->preposition, a->peer->pid,
			   a->peer->uid);
	if (a->detail)
		n = append(buf, size, n, ": %s", a->detail);
	if (a->result)
		(void)append(buf, size, n, ": %s", strerror(-a->result));
	journal_blank(buf);
	return buf;
}

size_t audit_fields(const struct audit *a, char buf[AUDIT_FIELDS_SIZE])
{
	const struct audit_kind *kind = &audit_kinds[a->action];
	const size_t size = AUDIT_FIELDS_SIZE;
	char message[AUDIT_MESSAGE_SIZE];
	char number[16];
	const char *name;
	size_t n = 0;

	n = journal_append(buf, size, n, "MESSAGE", audit_message(a, message));
	n = journal_append(buf, size, n, "MESSAGE_ID", kind->message_id);
	n = journal_append_number(buf, size, n, "PRIORITY", kind->level);
	n = journal_append(buf, size, n, "SYSLOG_IDENTIFIER", "weightd");
	n = journal_append(buf, size, n, "WEIGHTD_ACTION", kind->name);
	n = journal_append(buf, size, n, "WEIGHTD_BUFFER", a->buffer);
	n = journal_append(buf, size, n, "WEIGHTD_DEVICE", a->device);
	n = journal_append(buf, size, n, "WEIGHTD_JOB", a->job);
	if (a->version)
		n = journal_append_number(buf, size, n, "WEIGHTD_VERSION", a->version);
	if (a->peer) {
		n = journal_append_number(buf, size, n, "WEIGHTD_UID", a->peer->uid);
		n = journal_append_number(buf, size, n, "WEIGHTD_PID", (uint64_t)a->peer->pid);
	}
	name = libc_error_name(-a->result); /* "0" for success */
	(void)snprintf(number, sizeof(number), "%d", -a->result);
	return journal_append(buf, size, n, "WEIGHTD_RESULT", name ? name : number);
}

/* True when too many lines of the kind were logged for the user to log another. */
static bool is_flood(const struct audit *a)
{
	unsigned i = a->peer ? a->peer->uid % ARRAY_LEN(refusals) : 0;

	if (a->action == AUDIT_REFUSE)
		return !flood_admits(&refusals[i], "refusals");
	if (a->action == AUDIT_EVICT_READER)
		return !flood_admits(&evictions[i], "evictions of readers");
	return false;
}

static bool send_to_journal(const struct audit *a)
{
	char fields[AUDIT_FIELDS_SIZE];

	return journal_send(fields, audit_fields(a, fields));
}

void audit(const struct audit *a)
{
	char message[AUDIT_MESSAGE_SIZE];

	if (!is_flood(a) && !send_to_journal(a))
		log_line(audit_kinds[a->action].level, "%s", audit_message(a, message));
}

/*
 * Notices
 *
 * What an operator wants to read later: lines of the log that have fields where the journal reads them, so that
 * `journalctl SYNC_ID=5f3a9c0011223344` tells the story of a sync. weightd-sync(8) lists kinds and fields.
 */
#pragma once

#include <jansson.h>
#include <stdint.h>

enum notice_kind {
	NOTICE_ASKED, /* a push, by a user */
	NOTICE_CANCELLED,
	NOTICE_COMMITTED, /* a sync ended; these three */
	NOTICE_PLANNED,
	NOTICE_FAILED,
	NOTICE_BROKEN, /* an epoch */
	NOTICE_CORRUPT, /* bytes that a member found */
	NOTICE_FORKED, /* two versions that have one term and number */
	NOTICE_UP, /* a node */
	NOTICE_DOWN,
	NOTICE_REFUSED, /* a connection */
	NOTICE_KINDS,
};

/* What is not known, or not there, is NULL. */
struct notice {
	enum notice_kind kind;
	const char *sync;
	const char *buffer;
	const char *version; /* "1.7" */
	const char *peer; /* the other node */
	const char *phase;
	int64_t uid; /* who asked; -1: nobody did */
};

/* To be called once, after journal_init(). `node` is this one's name, and outlives all notices. */
void notice_init(const char *node);

__attribute__((format(printf, 2, 3))) void notice(const struct notice *n, const char *format, ...);

/* What the agent tells by a log or end event; others are passed over. */
void notice_event(const json_t *event);

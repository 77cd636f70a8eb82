/*
 * Log fields
 *
 * What an operator wants to read later: lines of the log that have fields where the journal reads them, so that
 * `journalctl SYNC_ID=5f3a9c0011223344` tells the story of a sync. weightd-sync(8) lists kinds and fields.
 */
#pragma once

#include <jansson.h>
#include <stdint.h>

enum log_fields_kind {
	LOG_FIELDS_ASKED, /* a push, by a user */
	LOG_FIELDS_CANCELLED,
	LOG_FIELDS_COMMITTED, /* a sync ended; these three */
	LOG_FIELDS_PLANNED,
	LOG_FIELDS_FAILED,
	LOG_FIELDS_BROKEN, /* an epoch */
	LOG_FIELDS_CORRUPT, /* bytes that a member found */
	LOG_FIELDS_FORKED, /* two versions that have one term and number */
	LOG_FIELDS_UP, /* a node */
	LOG_FIELDS_DOWN,
	LOG_FIELDS_REFUSED, /* a connection */
	LOG_FIELDS_KINDS,
};

/* Fields of a line; NULL: unknown, or not there. */
struct log_fields {
	enum log_fields_kind kind;
	const char *sync;
	const char *buffer;
	const char *version; /* "1.7" */
	const char *peer; /* the other node */
	const char *phase;
	int64_t uid; /* who asked; -1: nobody did */
};

/* To be called once, after journal_init(). `node` is this one's name, and outlives all lines. */
void log_fields_init(const char *node);

__attribute__((format(printf, 2, 3))) void log_fields_write(const struct log_fields *n,
							    const char *format, ...);

/* Writes the line of a log or end event of the agent; other events are ignored. */
void log_fields_write_event(const json_t *event);

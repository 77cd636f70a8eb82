/*
 * Log fields
 *
 * Log lines for operators with fields in the journal, so that `journalctl SYNC_ID=5f3a9c0011223344`
 * shows the course of a sync. weightd-sync(8) lists kinds and fields.
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
	LOG_FIELDS_CORRUPT, /* corrupted bytes at a member */
	LOG_FIELDS_FORKED, /* two versions with one term and number */
	LOG_FIELDS_UP, /* a node */
	LOG_FIELDS_DOWN,
	LOG_FIELDS_REFUSED, /* a connection */
	LOG_FIELDS_KINDS,
};

/* Unknown or absent values are NULL. */
struct log_fields {
	enum log_fields_kind kind;
	const char *sync;
	const char *buffer;
	const char *version; /* "1.7" */
	const char *peer; /* the other node */
	const char *phase;
	int64_t uid; /* the requesting user; -1: none */
};

/* Must be called once, after journal_init(). `node` is this node's name, and outlives all lines. */
void log_fields_init(const char *node);

__attribute__((format(printf, 2, 3))) void log_fields_write(const struct log_fields *n,
							    const char *format, ...);

/* Logs a log or end event of the agent; ignores others. */
void log_fields_write_event(const json_t *event);

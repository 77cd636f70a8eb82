/*
 * Audit lines
 *
 * One line for each change of a version or a job and for each refusal, with its user and process. Where the
 * journal reads stderr the line has structured fields, so that `journalctl WEIGHTD_BUFFER=llama-8b`
 * shows the history of a buffer. weightd(8) lists the fields.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "ipc/channel.h"
#include "server/base/log.h"

enum audit_action {
	AUDIT_CREATE,
	AUDIT_PUBLISH,
	AUDIT_ROLLBACK,
	AUDIT_DROP,
	AUDIT_CHMOD,
	AUDIT_CHOWN,
	AUDIT_UPDATE_BEGIN,
	AUDIT_TORN,
	AUDIT_EVICT_READER, /* the peer is the reader */
	AUDIT_KILL_READER, /* likewise */
	AUDIT_LOSE,
	AUDIT_RECOVER,
	AUDIT_QUARANTINE,
	AUDIT_JOB_CREATE,
	AUDIT_JOB_JOIN,
	AUDIT_JOB_LEAVE,
	AUDIT_JOB_REMOVE,
	AUDIT_REFUSE, /* permission is missing, or a limit is reached */
	AUDIT_ACTIONS,
};

struct audit {
	enum audit_action action;
	const struct channel_peer *peer; /* NULL: weightd by itself */
	const char *buffer; /* NULL: none, as for a connection; likewise the device */
	const char *device;
	const char *job; /* NULL: it is about no job */
	uint64_t version; /* 0: none */
	int result; /* 0 or a negative errno */
	const char *detail; /* appended to the sentence, or NULL */
};

struct audit_kind {
	const char *name;
	const char *message_id; /* it must never change */
	enum log_level level;
	const char *did; /* parts of the sentence: the verb, and the word before the peer */
	const char *preposition;
};

extern const struct audit_kind audit_kinds[AUDIT_ACTIONS];

/* Never blocks. On the loop's thread. */
void audit(const struct audit *a);

#define AUDIT_MESSAGE_SIZE 768
#define AUDIT_FIELDS_SIZE 2048

/* The sentence, without control characters. Returns `buf`. */
const char *audit_message(const struct audit *a, char buf[AUDIT_MESSAGE_SIZE]);

/* The journal's fields, FIELD=value in a line each. Returns their size. */
size_t audit_fields(const struct audit *a, char buf[AUDIT_FIELDS_SIZE]);

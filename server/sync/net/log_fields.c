/*
 * A line is logged when its decision is made. The agent does not log, but sends events: the kind in
 * "what" determines the fields of a line.
 */
#include "server/sync/net/log_fields.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/num.h"
#include "server/base/journal.h"
#include "server/base/log.h"

#define MESSAGE_SIZE 2048
#define FIELDS_SIZE 6144

static const struct {
	const char *name;
	const char *message_id; /* never changes */
	enum log_level level;
} kinds[LOG_FIELDS_KINDS] = {
	[LOG_FIELDS_ASKED] = {"asked", "2a9a55a1633a45209250fb6bf11178a5", LOG_LEVEL_INFO},
	[LOG_FIELDS_CANCELLED] = {"cancelled", "37c2ff2efe5d4b58a8bcdef18d8b7d32", LOG_LEVEL_INFO},
	[LOG_FIELDS_COMMITTED] = {"committed", "bfcaccc16475484cb4e99367178b6ded", LOG_LEVEL_INFO},
	[LOG_FIELDS_PLANNED] = {"planned", "556ed10187c04c03a88dd80ce5e95b42", LOG_LEVEL_INFO},
	[LOG_FIELDS_FAILED] = {"failed", "7bd868880edf4cd8914a865404922890", LOG_LEVEL_WARNING},
	[LOG_FIELDS_BROKEN] = {"broken", "5f5afa491a6e4cfa87976ba04d634b80", LOG_LEVEL_WARNING},
	[LOG_FIELDS_CORRUPT] = {"corrupt", "75242109269c4b3fac2d871117fd3754", LOG_LEVEL_WARNING},
	[LOG_FIELDS_FORKED] = {"forked", "efc32c3b725e448f91e1f39aa3b7b52e", LOG_LEVEL_WARNING},
	[LOG_FIELDS_UP] = {"up", "a1f296058eeb40acb06ab7462ffe0e16", LOG_LEVEL_INFO},
	[LOG_FIELDS_DOWN] = {"down", "5c6b0bd54ff24d7f8ac39b286782f081", LOG_LEVEL_WARNING},
	[LOG_FIELDS_REFUSED] = {"refused", "7e2f8ce768ed4fe0ab869d3e4c0462a2", LOG_LEVEL_WARNING},
};

static const char *own_name = "?";

void log_fields_init(const char *node)
{
	own_name = node;
}

static size_t write_fields(const struct log_fields *n, const char *message, char buf[FIELDS_SIZE])
{
	const size_t size = FIELDS_SIZE;
	size_t at = 0;

	at = journal_append(buf, size, at, "MESSAGE", message);
	at = journal_append(buf, size, at, "MESSAGE_ID", kinds[n->kind].message_id);
	at = journal_append_number(buf, size, at, "PRIORITY", kinds[n->kind].level);
	at = journal_append(buf, size, at, "SYSLOG_IDENTIFIER", "weightd-sync");
	at = journal_append(buf, size, at, "WEIGHTD_ACTION", kinds[n->kind].name);
	at = journal_append(buf, size, at, "SYNC_ID", n->sync);
	at = journal_append(buf, size, at, "WEIGHTD_BUFFER", n->buffer);
	at = journal_append(buf, size, at, "WEIGHTD_VERSION", n->version);
	at = journal_append(buf, size, at, "NODE", own_name);
	at = journal_append(buf, size, at, "PEER", n->peer);
	at = journal_append(buf, size, at, "PHASE", n->phase);
	if (n->uid >= 0)
		at = journal_append_number(buf, size, at, "WEIGHTD_UID", (uint64_t)n->uid);
	return at;
}

void log_fields_write(const struct log_fields *n, const char *format, ...)
{
	char message[MESSAGE_SIZE], fields[FIELDS_SIZE];
	va_list args;

	if (!log_is_told(kinds[n->kind].level))
		return;
	va_start(args, format);
	(void)vsnprintf(message, sizeof(message), format, args);
	va_end(args);
	if (!journal_send(fields, write_fields(n, message, fields)))
		log_line(kinds[n->kind].level, "%s", message);
}

/* --- Events of the agent ----------------------------------------------------------------------- */

static const char *text(const json_t *event, const char *key)
{
	return json_string_value(json_object_get(event, key));
}

static int find_kind(const char *name)
{
	for (int i = 0; name && i < LOG_FIELDS_KINDS; i++)
		if (strcmp(kinds[i].name, name) == 0)
			return i;
	return -1;
}

static struct log_fields notice_of(const json_t *event, enum log_fields_kind kind, char version[48])
{
	json_int_t number = json_integer_value(json_object_get(event, "number"));
	json_int_t term = json_integer_value(json_object_get(event, "term"));

	(void)snprintf(version, 48, "%" JSON_INTEGER_FORMAT ".%" JSON_INTEGER_FORMAT, term, number);
	return (struct log_fields){
		.kind = kind,
		.sync = text(event, "sync"),
		.buffer = text(event, "buffer"),
		.version = number ? version : NULL,
		.peer = text(event, "peer"),
		.phase = text(event, "phase"),
		.uid = -1,
	};
}

static void on_end(const json_t *event)
{
	const char *state = text(event, "state"), *sync = text(event, "sync");
	const char *kind = text(event, "kind"), *buffer = text(event, "buffer");
	int found = find_kind(state);
	char version[48];
	struct log_fields n;

	if (found < 0)
		return;
	n = notice_of(event, (enum log_fields_kind)found, version);
	if (text(event, "error"))
		log_fields_write(&n, "%s", text(event, "error"));
	else
		log_fields_write(&n, "sync %s: %s of %s: %s", sync ? sync : "?", kind ? kind : "?",
				 buffer ? buffer : "?", state);
}

static void on_log(const json_t *event)
{
	const char *name = text(event, "level"), *line = text(event, "text");
	int found = find_kind(text(event, "what"));
	enum log_level level;
	char version[48];
	struct log_fields n;

	if (!name || !line || log_parse_level(name, &level) < 0)
		return;
	if (found < 0) {
		log_line(level, "%s", line);
		return;
	}
	n = notice_of(event, (enum log_fields_kind)found, version);
	log_fields_write(&n, "%s", line);
}

void log_fields_write_event(const json_t *event)
{
	const char *what = text(event, "event");

	if (what && strcmp(what, "log") == 0)
		on_log(event);
	else if (what && strcmp(what, "end") == 0)
		on_end(event);
}

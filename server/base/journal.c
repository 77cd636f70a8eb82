/*
 * Nothing here waits: a line that the journal does not take at once becomes an ordinary log line,
 * and the log drops lines rather than wait, and counts them.
 */
#include "server/base/journal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "server/base/log.h"

#define JOURNAL_SOCKET "/run/systemd/journal/socket"
#define VALUE_MAX 255 /* limit for a field other than the message, so that all fit */

static int journal_fd = -1; /* -1: stderr is not the journal's */

void journal_init(void)
{
	if (log_is_journal() && journal_fd < 0)
		journal_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

void journal_blank(char *s)
{
	for (; *s; s++)
		if ((unsigned char)*s < 0x20 || *s == 0x7f)
			*s = '?';
}

size_t journal_append(char *buf, size_t size, size_t n, const char *field, const char *value)
{
	size_t room = size - n;
	int limit = strcmp(field, "MESSAGE") ? VALUE_MAX : (int)size, more;

	if (!value || room < 2)
		return n;
	more = snprintf(buf + n, room - 1, "%s=%.*s", field, limit, value);
	if (more < 0)
		return n;
	more = (size_t)more < room - 1 ? more : (int)room - 2;
	journal_blank(buf + n);
	n += (size_t)more;
	buf[n++] = '\n';
	buf[n] = '\0';
	return n;
}

size_t journal_append_number(char *buf, size_t size, size_t n, const char *field, uint64_t value)
{
	char text[24];

	(void)snprintf(text, sizeof(text), "%" PRIu64, value);
	return journal_append(buf, size, n, field, text);
}

bool journal_send(const char *fields, size_t size)
{
	static const struct sockaddr_un journal = {AF_UNIX, JOURNAL_SOCKET};

	return journal_fd >= 0 &&
	       sendto(journal_fd, fields, size, MSG_DONTWAIT | MSG_NOSIGNAL,
		      (const struct sockaddr *)&journal, sizeof(journal)) == (ssize_t)size;
}

/*
 * The client of a control socket. Every wait has a deadline: an agent that hangs is one more state that a person must
 * see.
 */
#include "libclient/weightctl/control/control_client.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "ipc/base/permission.h"
#include "libclient/weightctl/output/clock.h"
#include "libclient/weightctl/output/json_field.h"
#include "libclient/weightctl/output/table.h"

#define PACKET_MAX 65536
#define ROWS_BYTES_MAX (64 << 20) /* bytes of one reply */

struct service {
	const char *name;
	const char *start; /* how to start it by hand */
	const char *option, *variable; /* that set its path */
	const char *path; /* default path */
};

static const struct service services[] = {
	[PEER_AGENT] = {.name = "weightd-sync",
			.start = "weightd-sync --config FILE",
			.option = "--sync-socket",
			.variable = "WEIGHTD_SYNC_SOCKET",
			.path = "/run/weightd-sync/sync.sock"},
	[PEER_TRACER] = {.name = "weightd-trace",
			 .start = "weightd-trace",
			 .option = "--trace-socket",
			 .variable = "WEIGHTD_TRACE_SOCKET",
			 .path = "/run/weightd-trace/trace.sock"},
};

static const char *path_of(const struct cli *cli, const struct service *s)
{
	const char *path = s == &services[PEER_AGENT] ? cli->sync_socket : cli->trace_socket;

	if (!path)
		path = getenv(s->variable);
	return path && *path ? path : s->path;
}

static int cannot_connect(const struct control_client *a, int r)
{
	const struct service *s = a->service;
	char why[PERMISSION_TEXT_MAX];

	if (r == -ENOENT || r == -ECONNREFUSED)
		return cli_error("no %s answers at %s (%s); start it with 'systemctl start %s' or "
				 "'%s', or name its socket with %s or %s",
				 s->name, a->path, strerror(-r), s->name, s->start, s->option,
				 s->variable);
	if (r == -EACCES) {
		permission_explain(a->path, why);
		return cli_error("this user may not connect to %s at %s: %s", s->name, a->path, why);
	}
	if (r == -EPROTOTYPE)
		return cli_error("%s is not a socket of %s", a->path, s->name);
	if (r == -EAGAIN)
		return cli_error("%s on %s accepted no connection within %d s; is it stopped? See "
				 "'systemctl status %s' and its journal",
				 s->name, a->path, CONTROL_ANSWER_S, s->name);
	return cli_error("cannot connect to %s on %s: %s", s->name, a->path, strerror(-r));
}

/* Blocking, but connect() and send() give up in time. */
static int connect_to(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	const struct timeval patience = {.tv_sec = CONTROL_ANSWER_S};
	int fd, r;

	if (strlen(path) >= sizeof(address.sun_path))
		return -ENAMETOOLONG;
	(void)strcpy(address.sun_path, path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience)) < 0 ||
	    connect(fd, (const struct sockaddr *)&address, sizeof(address)) < 0) {
		r = -errno;
		(void)close(fd);
		return r;
	}
	return fd;
}

int control_client_open(const struct cli *cli, struct control_client *ret)
{
	const struct service *service = &services[cli->verb->peer];
	struct control_client a = {
		.service = service,
		.path = path_of(cli, service),
		.patience_s = cli->verb->patience_s ? cli->verb->patience_s : CONTROL_ANSWER_S,
	};

	a.fd = connect_to(a.path);
	if (a.fd < 0)
		return cannot_connect(&a, a.fd);
	a.packet = malloc(PACKET_MAX);
	if (!a.packet)
		cli_out_of_memory();
	*ret = a;
	return 0;
}

int control_client_probe(const struct cli *cli)
{
	int fd = connect_to(path_of(cli, &services[cli->verb->peer]));

	if (fd < 0)
		return fd;
	(void)close(fd);
	return 0;
}

void control_client_deinit(struct control_client *a)
{
	if (a->fd >= 0)
		(void)close(a->fd);
	free(a->packet);
	*a = (struct control_client){.fd = -1};
}

int control_client_is_silent(const struct control_client *a)
{
	return cli_error("%s on %s did not reply within %u s; see 'systemctl status %s' and its "
			 "journal",
			 a->service->name, a->path, a->patience_s, a->service->name);
}

static int is_gone(const struct control_client *a)
{
	return cli_error("%s on %s closed the connection before its reply was complete; see its "
			 "journal",
			 a->service->name, a->path);
}

static int is_strange(const struct control_client *a, const char *what)
{
	return cli_error("%s on %s sent %s; is it of another release?", a->service->name, a->path,
			 what);
}

int control_client_ask(struct control_client *a, json_t *request)
{
	char *text;
	ssize_t n;

	if (!request) /* every other text can be written as JSON */
		return cli_error("a name that is not UTF-8 cannot be sent to %s", a->service->name);
	text = json_dumps(request, JSON_COMPACT);
	json_decref(request);
	if (!text)
		cli_out_of_memory();
	do
		n = send(a->fd, text, strlen(text), MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	free(text);
	if (n >= 0 || errno == EPIPE || errno == ECONNRESET) /* its last words may be there */
		return 0;
	return errno == EAGAIN ? control_client_is_silent(a)
			       : cli_error("cannot send to %s on %s: %s", a->service->name, a->path,
					   strerror(errno));
}

int control_client_take(struct control_client *a, json_t **ret)
{
	json_t *packet;
	ssize_t n;

	/*
	 * If the service closed without reading its request, the kernel reports that once, before the packets
	 * sent so far.
	 */
	do
		n = recv(a->fd, a->packet, PACKET_MAX, MSG_DONTWAIT | MSG_TRUNC);
	while (n < 0 && (errno == EINTR || errno == ECONNRESET));
	if (n < 0 && errno == EAGAIN)
		return -EAGAIN;
	if (n < 0)
		return cli_error("cannot receive from %s on %s: %s", a->service->name, a->path,
				 strerror(errno));
	if (n <= 0)
		return is_gone(a);
	if (n > PACKET_MAX)
		return is_strange(a, "a packet that is too long");
	a->n_bytes += (uint64_t)n;
	packet = json_loadb(a->packet, (size_t)n, JSON_REJECT_DUPLICATES, NULL);
	if (!json_is_object(packet)) {
		json_decref(packet);
		return is_strange(a, "a packet that is no JSON object");
	}
	if (control_client_is_end(packet) && json_field_number(packet, "cut", 0) > 0)
		(void)cli_error("%s left %" PRIu64 " rows out: its reply has no room for more",
				a->service->name, json_field_number(packet, "cut", 0));
	*ret = packet;
	return 0;
}

static int next_before(struct control_client *a, uint64_t deadline_ns, json_t **ret)
{
	struct pollfd p = {.fd = a->fd, .events = POLLIN};
	int r;

	while ((r = control_client_take(a, ret)) == -EAGAIN) {
		uint64_t now = clock_now_ns();

		if (now >= deadline_ns)
			return control_client_is_silent(a);
		(void)poll(&p, 1, (int)((deadline_ns - now) / 1000000) + 1);
	}
	return r;
}

static uint64_t deadline(const struct control_client *a)
{
	return clock_now_ns() + (uint64_t)a->patience_s * 1000000000;
}

int control_client_next(struct control_client *a, json_t **ret)
{
	return next_before(a, deadline(a), ret);
}

bool control_client_is_end(const json_t *packet)
{
	return json_is_true(json_object_get(packet, "end"));
}

const char *control_client_error(const json_t *packet)
{
	return json_field_text(packet, "error");
}

/* All of the rows before `deadline_ns`, and no more than fit: a row a second for ever is no answer, either. */
static int read_rows(struct control_client *a, uint64_t deadline_ns, json_t *rows)
{
	uint64_t before = a->n_bytes;

	for (;;) {
		json_t *packet;
		int r;

		r = next_before(a, deadline_ns, &packet);
		if (r)
			return r;
		if (control_client_error(packet))
			r = cli_error("%s", control_client_error(packet));
		else if (a->n_bytes - before > ROWS_BYTES_MAX)
			r = is_strange(a, "too many rows");
		if (r || control_client_is_end(packet)) {
			json_decref(packet);
			return r;
		}
		if (json_array_append_new(rows, packet) < 0)
			cli_out_of_memory();
	}
}

int control_client_ask_rows(struct control_client *a, json_t *request, json_t **ret)
{
	cleanup(json_decrefp) json_t *rows = json_array();

	if (!rows)
		cli_out_of_memory();
	if (control_client_ask(a, request) || read_rows(a, deadline(a), rows))
		return EXIT_FAILED;
	*ret = json_incref(rows);
	return 0;
}

int control_client_rows(const struct cli *cli, json_t *request, json_t **ret)
{
	cleanup(control_client_deinit) struct control_client a = {.fd = -1};

	if (control_client_open(cli, &a)) {
		json_decref(request);
		return EXIT_FAILED;
	}
	return control_client_ask_rows(&a, request, ret);
}

int control_client_show(const struct cli *cli, int argc, json_t *request,
			int (*print)(const struct cli *cli, struct table *table, const json_t *rows))
{
	cleanup(json_decrefp) json_t *rows = NULL;
	cleanup(table_deinit) struct table table = {};

	if (argc - optind > 0)
		cli_usage(cli, "'%s' takes no arguments", cli->verb->name);
	table_init(&table, &cli->format, cli->verb->columns);
	if (control_client_rows(cli, request, &rows))
		return EXIT_FAILED;
	return print(cli, &table, rows);
}

/*
 * The server by libmicrohttpd, which is opened when it is needed: weightctl works without it, and starts faster.
 *
 * One thread does all in rounds. The page is made once in a round at most, however many clients ask for it.
 */
#include "libclient/weightctl/http/http_server.h"

#include <dlfcn.h>
#include <errno.h>
#include <microhttpd.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "libclient/weightctl/http/connections.h"
#include "libclient/weightctl/http/listener.h"
#include "libclient/weightctl/output/cli_error.h"
#include "libclient/weightctl/output/clock.h"
#include "libclient/weightctl/signals.h"

#define SONAME "libmicrohttpd.so.12"
#define REQUEST_MAX 16384 /* bytes of a connection, for its request and the head of the reply */
#define TEXT "text/plain; charset=utf-8"

#define MICROHTTPD_FUNCTIONS(X)                                                                    \
	X(MHD_start_daemon)                                                                        \
	X(MHD_stop_daemon)                                                                         \
	X(MHD_run)                                                                                 \
	X(MHD_get_timeout)                                                                         \
	X(MHD_get_daemon_info)                                                                     \
	X(MHD_get_connection_info)                                                                 \
	X(MHD_create_response_from_buffer)                                                         \
	X(MHD_add_response_header)                                                                 \
	X(MHD_queue_response)                                                                      \
	X(MHD_destroy_response)

struct microhttpd {
#define X(function) __typeof__(function) *function;
	MICROHTTPD_FUNCTIONS(X)
#undef X
};

struct http_server {
	struct microhttpd lib;
	struct MHD_Daemon *daemon;
	const struct http_page *page;
	struct connections connections;
	struct MHD_Response *reply; /* of this round; NULL: not made yet */
	unsigned status; /* of `reply` */
};

/* It stays open. */
static int microhttpd_open(struct microhttpd *ret)
{
	void *library = dlopen(SONAME, RTLD_NOW | RTLD_LOCAL);

	if (!library)
		return cli_error(
			"cannot serve HTTP: %s; install it (Debian's package libmicrohttpd12)",
			dlerror());
		/* POSIX allows it, ISO C does not: a function pointer from dlsym(). */
#define X(function)                                                                                \
	*(void **)&ret->function = dlsym(library, #function);                                      \
	if (!ret->function)                                                                        \
		return cli_error(SONAME " lacks " #function "; install 0.9.71 or newer");
	MICROHTTPD_FUNCTIONS(X)
#undef X
	return 0;
}

/* --- Replies ------------------------------------------------------------------------------------ */

/* Takes `text` with MHD_RESPMEM_MUST_FREE. */
static struct MHD_Response *http_server_make_reply(const struct http_server *s, const char *type,
						   char *text, enum MHD_ResponseMemoryMode mode)
{
	struct MHD_Response *reply = s->lib.MHD_create_response_from_buffer(strlen(text), text,
									    mode);

	/* Connections have one request: a kept one would only wait for its end. */
	if (!reply || s->lib.MHD_add_response_header(reply, "Content-Type", type) == MHD_NO ||
	    s->lib.MHD_add_response_header(reply, "Connection", "close") == MHD_NO)
		cli_out_of_memory();
	return reply;
}

static void http_server_make_page(struct http_server *s)
{
	cleanup(cli_freep) char *why = NULL;
	char *text = NULL;
	int r = s->page->make(s->page->userdata, &text);

	if (r) {
		why = text;
		if (asprintf(&text, "%s\n", why) < 0)
			cli_out_of_memory();
	}
	s->status = r ? MHD_HTTP_SERVICE_UNAVAILABLE : MHD_HTTP_OK;
	s->reply = http_server_make_reply(s, r ? TEXT : s->page->type, text, MHD_RESPMEM_MUST_FREE);
}

static enum MHD_Result http_server_refuse(struct http_server *s, struct MHD_Connection *connection,
					  unsigned status, const char *text)
{
	struct MHD_Response *reply = http_server_make_reply(s, TEXT, (char *)text,
							    MHD_RESPMEM_PERSISTENT);
	enum MHD_Result r;

	if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
		(void)s->lib.MHD_add_response_header(reply, "Allow", "GET, HEAD");
	r = s->lib.MHD_queue_response(connection, status, reply);
	s->lib.MHD_destroy_response(reply);
	return r;
}

static enum MHD_Result http_server_answer(void *userdata, struct MHD_Connection *connection,
					  const char *url, const char *method, const char *version,
					  const char *body, size_t *body_size, void **context)
{
	struct http_server *s = userdata;

	(void)version;
	(void)body;
	(void)body_size;
	(void)context;
	if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
		return http_server_refuse(s, connection, MHD_HTTP_METHOD_NOT_ALLOWED, "use GET\n");
	if (strcmp(url, s->page->path) != 0)
		return http_server_refuse(s, connection, MHD_HTTP_NOT_FOUND,
					  "the page is /metrics\n");
	if (!s->reply)
		http_server_make_page(s);
	return s->lib.MHD_queue_response(connection, s->status, s->reply);
}

/* --- Rounds ------------------------------------------------------------------------------------- */

static void http_server_note(void *userdata, struct MHD_Connection *connection, void **context,
			     enum MHD_ConnectionNotificationCode what)
{
	struct http_server *s = userdata;
	int fd = s->lib.MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)
			 ->connect_fd;

	(void)context;
	if (what == MHD_CONNECTION_NOTIFY_STARTED)
		connections_add(&s->connections, fd, clock_now_ns());
	else
		connections_remove(&s->connections, fd);
}

static int http_server_wait_ms(struct http_server *s)
{
	int ms = connections_expire(&s->connections, clock_now_ns());
	MHD_UNSIGNED_LONG_LONG more;

	if (s->lib.MHD_get_timeout(s->daemon, &more) == MHD_YES && (ms < 0 || more < (unsigned)ms))
		return (int)more;
	return ms;
}

static void http_server_round(struct http_server *s)
{
	(void)s->lib.MHD_run(s->daemon);
	if (s->reply)
		s->lib.MHD_destroy_response(s->reply);
	s->reply = NULL;
}

/* Returns 0 once a signal has arrived. */
static int http_server_serve(struct http_server *s, int signals_fd)
{
	const union MHD_DaemonInfo *info = s->lib.MHD_get_daemon_info(s->daemon,
								      MHD_DAEMON_INFO_EPOLL_FD);
	struct pollfd p[] = {{.fd = info->epoll_fd, .events = POLLIN},
			     {.fd = signals_fd, .events = POLLIN}};

	for (;;) {
		if (poll(p, 2, http_server_wait_ms(s)) < 0 && errno != EINTR)
			return cli_error("cannot wait for connections: %s", strerror(errno));
		if (p[1].revents && signals_take(signals_fd))
			return 0;
		http_server_round(s);
	}
}

/* `fd` is a listening socket, which the library closes. */
static int http_server_start(struct http_server *s, int fd)
{
	/* Connections that were shut down count until the library has closed them. */
	s->daemon = s->lib.MHD_start_daemon(MHD_USE_EPOLL, 0, NULL, NULL, http_server_answer, s,
					    MHD_OPTION_LISTEN_SOCKET, fd,
					    MHD_OPTION_CONNECTION_LIMIT, 2U * CONNECTIONS_MAX,
					    MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)REQUEST_MAX,
					    MHD_OPTION_NOTIFY_CONNECTION, http_server_note, s,
					    MHD_OPTION_END);
	if (s->daemon)
		return 0;
	(void)close(fd);
	return cli_error(SONAME " cannot start a server");
}

int http_server_run(const char *address, const struct http_page *page)
{
	char at[LISTENER_ADDRESS_SIZE], why[LISTENER_WHY_SIZE];
	struct http_server s = {.page = page};
	int fd, signals_fd, r;

	if (microhttpd_open(&s.lib))
		return EXIT_FAILED;
	fd = listener_open(address, at, why);
	if (fd < 0)
		return cli_error("cannot listen at %s: %s", address, why);
	if (http_server_start(&s, fd))
		return EXIT_FAILED;
	(void)signal(SIGPIPE, SIG_IGN);
	signals_fd = signals_open();
	(void)printf("http://%s%s\n", at, page->path);
	(void)fflush(stdout);
	r = signals_fd < 0 ? cli_error("cannot watch for signals: %s", strerror(-signals_fd))
			   : http_server_serve(&s, signals_fd);
	s.lib.MHD_stop_daemon(s.daemon);
	if (signals_fd >= 0)
		(void)close(signals_fd);
	return r;
}

/*
 * A server that restarts keeps a lease only if the client resumes it in time. A thread waits for the event on a
 * connection of its own, because a call that waits occupies its connection.
 */
#include "libclient/weightctl/holder.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "libclient/weightctl/absent.h"
#include "libclient/weightctl/server.h"

#define RESTART_MS 5000 /* of a call to a server that has just restarted */

/* Ends with the server, if that does not return. */
static void *wait_for_restarts(void *userdata)
{
	struct holder *h = userdata;
	struct weightd_event event;
	int r;

	do {
		event = (struct weightd_event){.size = sizeof(event)};
		r = weightd_watch_next(h->watch, -1, &event);
		if (r >= 0 && event.kind == WEIGHTD_EVENT_RESTARTED)
			(void)eventfd_write(h->restart_fd, 1);
	} while (r >= 0);
	return NULL;
}

static int watch_server(struct holder *h)
{
	struct weightd_watch *watch;
	int r = weightd_watch_new(h->cli->w, &watch);

	if (r < 0)
		return cli_fail(h->cli, r);
	h->restart_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	r = h->restart_fd < 0 ? -errno : 0;
	h->watch = watch;
	if (r == 0)
		r = -pthread_create(&h->thread, NULL, wait_for_restarts, h);
	if (r < 0) {
		weightd_watch_free(watch);
		h->watch = NULL;
		return cli_error("cannot watch the server: %s", strerror(-r));
	}
	return 0;
}

/* Any call resumes the leases. Without them the descriptors still keep the memory. */
static void renew(struct holder *h)
{
	struct weightd_server server = {.size = sizeof(server)};

	(void)weightd_ping(h->cli->w, &server);
}

enum where {
	NOWHERE,
	ON_HOST,
	ON_GPU, /* alone */
};

static enum where find(struct cli *cli, const char *name)
{
	cleanup(cli_list_freep) struct weightd_list *list = NULL;
	const struct weightd_buffer_info *info = NULL;

	if (weightd_list(cli->w, name, &list) < 0)
		return ON_HOST;
	for (size_t i = 0; (info = weightd_list_buffer(list, i)); i++)
		if (info->memory == WEIGHTD_MEMORY_HOST)
			return ON_HOST;
	return weightd_list_count(list) > 0 ? ON_GPU : NOWHERE;
}

/* The number in NAME[@VERSION], which was parsed before; 0: none. */
static uint64_t version_of(const char *spec)
{
	const char *at = strchr(spec, '@');

	return at ? strtoull(at + 1, NULL, 10) : 0;
}

static int fail_absent(struct cli *cli, const char *const *specs, size_t n)
{
	cleanup(cli_freep) char *sentence = strdup(weightd_error(cli->w)); /* a list may replace it */

	for (size_t i = 0; i < n && sentence; i++) {
		cleanup(cli_freep) char *name = strndup(specs[i], strcspn(specs[i], "@"));
		const enum where where = name ? find(cli, name) : ON_HOST;

		if (where == ON_GPU)
			return cli_error("'%s' is on a GPU, and only versions in host memory are files; "
					 "load it to the host, too (weightctl load %s PATH)",
					 name, name);
		if (where == NOWHERE || n == 1)
			return absent_version(cli, name, version_of(specs[i]), -ENOENT);
	}
	return cli_error("%s", sentence ? sentence : strerror(ENOMEM));
}

bool holder_has_proc(void)
{
	return access("/proc/self/fd", F_OK) == 0;
}

static int fail(struct cli *cli, const char *const *specs, size_t n, int r)
{
	if (r == -ENOENT)
		return fail_absent(cli, specs, n);
	if (r == -ENOLINK && holder_has_proc())
		return cli_error("%s; --inherit works without, for a program of one process",
				 weightd_error(cli->w));
	return cli_fail(cli, r);
}

int holder_open(struct holder *h, struct cli *cli, const char *const *specs, size_t n,
		const struct weightd_model_dir_options *options)
{
	int r;

	*h = (struct holder){.cli = cli, .restart_fd = -1};
	if (server_connect(cli))
		return EXIT_FAILED;
	r = weightd_model_dir_new(cli->w, specs, n, options, &h->dir);
	if (r < 0)
		return fail(cli, specs, n, r);
	weightd_set_restart_timeout(cli->w, -1); /* the connection of the watch has the same */
	r = watch_server(h);
	weightd_set_restart_timeout(cli->w, RESTART_MS);
	if (r == 0)
		renew(h); /* a restart before the watch was no event */
	if (r)
		holder_close(h);
	return r;
}

void holder_keep(struct holder *h, int fd)
{
	struct pollfd fds[] = {
		{.fd = fd, .events = POLLIN},
		{.fd = h->restart_fd, .events = POLLIN},
	};
	eventfd_t count;

	do {
		if (poll(fds, 2, -1) < 0 || !(fds[1].revents & POLLIN))
			continue;
		(void)eventfd_read(h->restart_fd, &count);
		renew(h);
	} while (!fds[0].revents);
}

void holder_close(struct holder *h)
{
	if (h->watch) {
		(void)pthread_cancel(h->thread);
		(void)pthread_join(h->thread, NULL);
		weightd_watch_free(h->watch);
	}
	weightd_model_dir_free(h->dir);
	if (h->restart_fd >= 0)
		(void)close(h->restart_fd);
	*h = (struct holder){.restart_fd = -1};
}

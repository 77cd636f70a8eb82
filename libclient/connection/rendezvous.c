/*
 * Without a path the user's own server has precedence over the system's. A starting server creates its socket before
 * it listens, and a service manager changes its group after that: for a moment the socket is missing, refuses, or is
 * closed to its users. The times of the file and of its folder distinguish that moment from a server that does not
 * run, so that only the former costs time. A socket about to be replaced refuses before it is removed, and cannot be
 * distinguished from a stale one: both get a moment.
 */
#include "libclient/connection/rendezvous.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "ipc/base/permission.h"
#include "ipc/socket_path.h"
#include "libclient/connection/dial.h"
#include "libclient/connection/folder.h"

#define FRESH_NS UINT64_C(1000000000)
#define REFUSED_NS UINT64_C(200000000) /* a socket about to be removed refuses first */
#define RECHECK_MS 50 /* no event announces that a socket has a listener */

static int rendezvous_add(struct rendezvous *z, char *path)
{
	if (!path)
		return -ENOMEM;
	z->paths[z->n++] = path;
	return 0;
}

int rendezvous_init(struct rendezvous *z, const char *path)
{
	char *users = NULL;
	int r;

	*z = (struct rendezvous){.given = socket_path_given(path)};
	if (z->given)
		return rendezvous_add(z, strdup(z->given));
	r = socket_path_user(&users);
	if (r == 0)
		r = rendezvous_add(z, users);
	return r == -ENOMEM ? r : rendezvous_add(z, strdup(SOCKET_PATH_SYSTEM));
}

void rendezvous_deinit(struct rendezvous *z)
{
	for (unsigned i = 0; i < z->n; i++)
		free(take_ptr(z->paths[i]));
	z->n = 0;
}

/* How long something that changed at `t` is still fresh. */
static uint64_t fresh_ns(struct timespec t)
{
	struct timespec now;
	int64_t age_ns;

	(void)clock_gettime(CLOCK_REALTIME, &now); /* the clock of files */
	age_ns = (now.tv_sec - t.tv_sec) * INT64_C(1000000000) + (now.tv_nsec - t.tv_nsec);
	return age_ns >= 0 && (uint64_t)age_ns < FRESH_NS ? FRESH_NS - (uint64_t)age_ns : 0;
}

/* The folder that `path` is in, where there is one. */
static int stat_folder(const char *path, struct stat *ret)
{
	const char *slash = strrchr(path, '/');
	char folder[PATH_MAX];

	(void)snprintf(folder, sizeof(folder), "%.*s/.", slash ? (int)(slash - path) : 1,
		       slash ? path : ".");
	return stat(folder, ret);
}

/* How long the socket may still be in the making, to judge by the error `r`; 0: it is not. */
static uint64_t making_ns(const char *path, int r)
{
	struct stat st;

	if (r == -ENOENT)
		return stat_folder(path, &st) == 0 ? fresh_ns(st.st_mtim) : 0;
	if (r == -ECONNREFUSED || r == -EACCES)
		return stat(path, &st) == 0 ? fresh_ns(st.st_ctim) : 0;
	return 0;
}

/* True where the server of this path is none for us, and the next path counts. */
static bool is_passed_over(const char *path, int r)
{
	if (r == -ECONNREFUSED)
		return making_ns(path, r) == 0;
	return r == -ENOENT || r == -ENOTDIR || r == -ENAMETOOLONG ||
	       (r == -EACCES && permission_hides(path));
}

static int open_first(struct rendezvous *z, struct weightd *w)
{
	int r = -ENOENT;

	for (z->n_tried = 0; z->n_tried < z->n;) {
		unsigned i = z->n_tried++;

		free(w->path);
		w->path = strdup(z->paths[i]);
		if (!w->path)
			return sentence_set(&w->sentence, -ENOMEM, "out of memory");
		r = z->errors[i] = dial_open(w, true);
		if (!is_passed_over(z->paths[i], r))
			break;
	}
	return r;
}

/* How long one of those that were tried may still be in the making, or be about to be. */
static uint64_t longest_making_ns(const struct rendezvous *z, int r, uint64_t elapsed_ns)
{
	uint64_t longest = r == -ECONNREFUSED && elapsed_ns < REFUSED_NS ? REFUSED_NS - elapsed_ns
									 : 0;

	for (unsigned i = 0; i < z->n_tried; i++) {
		uint64_t ns = making_ns(z->paths[i], z->errors[i]);

		if (ns > longest)
			longest = ns;
	}
	return longest;
}

/* "no weightd answers at A (No such file or directory) or B (...); start one ..." */
static int nobody_answers(const struct rendezvous *z, struct weightd *w, int r)
{
	char first[SENTENCE_MAX] = "";

	if (z->given)
		return sentence_set(
			&w->sentence, r,
			"no weightd answers at %s (%s); start one (weightd --socket %s), or set "
			"WEIGHTD_SOCKET to another socket",
			w->path, strerror(-r), w->path);
	if (z->n_tried > 1)
		(void)snprintf(first, sizeof(first), "%s (%s) or ", z->paths[0],
			       strerror(-z->errors[0]));
	return sentence_set(
		&w->sentence, r,
		"no weightd answers at %s%s (%s); start the system's (systemctl start "
		"weightd.socket) or one of your own (weightd), or set WEIGHTD_SOCKET to another socket",
		first, w->path, strerror(-r));
}

static int rendezvous_explain(const struct rendezvous *z, struct weightd *w, int r)
{
	char why[PERMISSION_TEXT_MAX];

	if (r == -ENOENT || r == -ECONNREFUSED)
		return nobody_answers(z, w, r);
	if (r != -EACCES)
		return r;
	permission_explain(w->path, why);
	return sentence_set(&w->sentence, r,
			    "this user may not connect to weightd at %s: %s; or set WEIGHTD_SOCKET "
			    "to another socket",
			    w->path, why);
}

int rendezvous_open(struct rendezvous *z, struct weightd *w)
{
	const uint64_t start_ns = num_now_ns(), end_ns = start_ns + FRESH_NS;
	cleanup(fd_closep) int watch = -1;
	uint64_t left_ns, now_ns;
	bool is_first = true;
	int pause_ms = 1, r;

	for (;; is_first = false) {
		r = open_first(z, w);
		now_ns = num_now_ns();
		left_ns = r < 0 ? longest_making_ns(z, r, now_ns - start_ns) : 0;
		if (left_ns == 0 || now_ns >= end_ns)
			return r < 0 ? rendezvous_explain(z, w, r) : 0;
		for (unsigned i = 0; is_first && i < z->n; i++)
			watch = folder_watch(watch, z->paths[i]);
		if ((uint64_t)pause_ms * 1000000 > left_ns)
			pause_ms = (int)(left_ns / 1000000) + 1;
		if (folder_wait(watch, pause_ms))
			pause_ms = 1;
		else if (pause_ms < RECHECK_MS)
			pause_ms *= 2;
	}
}

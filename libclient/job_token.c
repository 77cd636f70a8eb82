/*
 * Operations on a job by its name or its token, without being one of its ranks.
 */
#include "libclient/job_token.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "libclient/connection/call.h"
#include "libclient/connection/release.h"
#include "weightd.h"

#define TOKEN_DIGITS (2 * WIRE_TOKEN_SIZE)

static_assert(WEIGHTD_TOKEN_MAX == WEIGHTD_NAME_MAX + 1 + TOKEN_DIGITS + 1,
	      "a token has room for each name");
static_assert(WEIGHTD_RANKS_MAX == WIRE_JOB_RANKS_MAX, "limits of jobs are ABI");
static_assert(WEIGHTD_DESCRIPTION_MAX == WIRE_DESCRIPTION_MAX, "limits of jobs are ABI");

int job_check_server(struct weightd *w)
{
	int r = client_check_usable(w);

	if (r < 0 || w->has_jobs)
		return r;
	return release_too_old(w, &w->sentence, "have jobs");
}

int job_put_name(struct weightd *w, const char *name, char field[WIRE_NAME_SIZE])
{
	if (name[0] && codec_put_string(field, WIRE_NAME_SIZE, name) == 0)
		return 0;
	return sentence_set(&w->sentence, -EINVAL, "a job's name has 1 to %d bytes",
			    WEIGHTD_NAME_MAX);
}

static void token_write(const struct wire_job_create *create, char ret[WEIGHTD_TOKEN_MAX])
{
	int n = snprintf(ret, WEIGHTD_TOKEN_MAX, "%s:", create->name);

	for (size_t i = 0; i < WIRE_TOKEN_SIZE; i++)
		(void)snprintf(ret + n + 2 * i, 3, "%02x", create->token[i]);
}

/* -1: no digit. */
static int digit_value(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool bytes_parse(const char *digits, uint8_t ret[WIRE_TOKEN_SIZE])
{
	for (size_t i = 0; i < WIRE_TOKEN_SIZE; i++) {
		int high = digit_value(digits[2 * i]), low;

		low = high < 0 ? -1 : digit_value(digits[2 * i + 1]);
		if (low < 0)
			return false;
		ret[i] = (uint8_t)(high << 4 | low);
	}
	return digits[TOKEN_DIGITS] == '\0';
}

int job_token_parse(struct weightd *w, const char *text, struct wire_job_key *ret)
{
	const char *colon = text ? strrchr(text, ':') : NULL; /* names may have some, too */
	size_t n = colon ? (size_t)(colon - text) : 0;

	*ret = (struct wire_job_key){0};
	if (n > 0 && n < sizeof(ret->name) && bytes_parse(colon + 1, ret->token)) {
		memcpy(ret->name, text, n);
		return 0;
	}
	return sentence_set(
		&w->sentence, -EINVAL,
		"the token of a job has the form NAME:DIGITS, with %d hexadecimal digits, as "
		"weightd_job_create() returns it; this one is %s",
		TOKEN_DIGITS, !text || !*text ? "empty" : "cut or changed");
}

/*
 * A create that is sent again, because the server was lost, may find the job that the first one made. Only that job has
 * this token.
 */
static bool job_is_ours(struct weightd *w, const struct wire_job_create *create)
{
	struct client_call call = {.op = WIRE_JOB_DESCRIPTION};
	int r;

	memcpy(call.request.job_description.name, create->name, sizeof(create->name));
	memcpy(call.request.job_description.token, create->token, sizeof(create->token));
	r = client_call_run(w, &call);
	client_call_deinit(&call);
	return r == 0 || r == -ENODATA;
}

/* Counts the times that the request was sent. */
static int create_again(struct weightd *w, struct client_call *call)
{
	(void)w;
	*(bool *)call->subject = call->sent;
	return 0;
}

static int copy_options(struct weightd *w, const struct weightd_job_options *options,
			struct wire_job_create *create)
{
	struct weightd_job_options o = {0};
	int r = client_copy_options(w, options, offsetof(struct weightd_job_options, linger_ms), &o,
				    sizeof(o));

	if (r < 0)
		return r;
	if (o.n_ranks < 1 || o.n_ranks > WEIGHTD_RANKS_MAX)
		return sentence_set(&w->sentence, -EINVAL,
				    "a job has 1 to %d ranks on a machine, not %" PRIu32,
				    WEIGHTD_RANKS_MAX, o.n_ranks);
	if (o.linger_ms < 0)
		return sentence_set(
			&w->sentence, -EINVAL,
			"a job lingers for 0 (for ever) or more milliseconds, not %" PRId64,
			o.linger_ms);
	create->n_ranks = o.n_ranks;
	create->linger_ms = o.linger_ms;
	return 0;
}

int weightd_job_create(struct weightd *w, const char *name,
		       const struct weightd_job_options *options, char ret_token[WEIGHTD_TOKEN_MAX])
{
	bool is_repeated = false;
	struct client_call call = {
		.op = WIRE_JOB_CREATE,
		.again = create_again,
		.subject = &is_repeated,
	};
	struct wire_job_create *create = &call.request.job_create;
	struct sentence said;
	int r = job_put_name(w, name, create->name);

	if (r == 0)
		r = copy_options(w, options, create);
	if (r == 0)
		r = job_check_server(w);
	if (r < 0)
		return r;
	if (getrandom(create->token, sizeof(create->token), 0) != sizeof(create->token))
		return sentence_set(&w->sentence, -EIO, "the kernel has no random bytes: %s",
				    strerror(errno));
	r = client_call_run(w, &call);
	said = w->sentence;
	if (r == -EEXIST && is_repeated && job_is_ours(w, create))
		r = 0;
	w->sentence = said;
	if (r < 0)
		return r;
	token_write(create, ret_token);
	return 0;
}

int weightd_job_remove(struct weightd *w, const char *name)
{
	struct client_call call = {
		.op = WIRE_JOB_REMOVE,
		.again = client_not_again,
		.subject = (void *)name,
	};
	int r = job_put_name(w, name, call.request.job_remove.name);

	if (r == 0)
		r = job_check_server(w);
	return r < 0 ? r : client_call_run(w, &call);
}

/* All of a file that others may read at the same time. */
static int read_description(int fd, void *to, uint64_t size)
{
	char *p = to;

	for (uint64_t at = 0; at < size;) {
		ssize_t n = pread(fd, p + at, size - at, (off_t)at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EBADMSG;
		at += (uint64_t)n;
	}
	return 0;
}

int job_description_read(int fd, void **ret, uint64_t *ret_size)
{
	cleanup(freep) void *description = NULL;
	uint64_t size;
	int r = fd_size(fd, &size);

	if (r == 0 && size > WIRE_DESCRIPTION_MAX)
		r = -EBADMSG;
	if (r == 0)
		description = malloc(size ? size : 1);
	if (r == 0)
		r = description ? read_description(fd, description, size) : -ENOMEM;
	if (r < 0)
		return r;
	*ret = take_ptr(description);
	*ret_size = size;
	return 0;
}

int weightd_job_description(struct weightd *w, const char *token, void **ret, uint64_t *ret_size)
{
	struct client_call call = {.op = WIRE_JOB_DESCRIPTION};
	cleanup(fd_closep) int fd = -1;
	int r = job_token_parse(w, token, &call.request.job_description);

	if (r == 0)
		r = job_check_server(w);
	if (r == 0)
		r = client_call_run(w, &call);
	if (r < 0)
		return r;
	fd = take_fd(call.reply_fds[0]);
	r = job_description_read(fd, ret, ret_size);
	return r < 0 ? sentence_set(&w->sentence, r,
				    "the description of job '%s' cannot be read: %s",
				    call.request.job_description.name, strerror(-r))
		     : 0;
}

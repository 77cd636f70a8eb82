/*
 * A rank of a job: descriptors of its parts, which stay valid without the server, a place among the ranks there, which
 * ends with the connection and is taken again on the next one, and the lock that makes this process the only one.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/hash.h"
#include "libclient/connection/call.h"
#include "libclient/connection/restart.h"
#include "libclient/job_lock.h"
#include "libclient/job_token.h"
#include "weightd.h"

static_assert(WEIGHTD_PARTS_MAX == WIRE_JOB_PARTS_MAX, "limits of jobs are ABI");
static_assert(WEIGHTD_PART_KIND_MAX == WIRE_KIND_SIZE - 1, "limits of jobs are ABI");

struct weightd_job {
	struct held held; /* first */
	struct weightd *w;
	pid_t owner; /* the process that joined; a child may only look */
	struct wire_job_join join; /* to join with again */
	int description_fd; /* likewise */
	uint64_t id; /* 0: not a rank for the server, at present or any more */
	uint32_t n_ranks;
	struct job_lock *lock; /* owns the descriptor of part 0 */
	int fds[WIRE_JOB_PARTS_MAX]; /* from part 1 on owned */
	bool has_left;
	bool is_lost; /* the server has no such job any more */
	struct sentence why_lost;
};

/* --- Joining, and joining again ----------------------------------------------------------------- */

static int send_join(struct weightd_job *j, struct client_call *call)
{
	call->op = WIRE_JOB_JOIN;
	call->request.job_join = j->join;
	call->fds = &j->description_fd;
	return client_ask(j->w, call);
}

static bool is_gone(int r)
{
	return r == -ENOENT || r == -ESTALE || r == -EACCES || r == -EPROTOTYPE || r == -EOPNOTSUPP;
}

static int job_rejoin(struct weightd_job *j, struct client_call *call)
{
	int r = send_join(j, call);

	if (j->w->fd < 0)
		return r; /* to be tried again, on the next connection */
	j->id = r == 0 ? call->reply.job_join.job : 0;
	if (is_gone(r)) {
		j->is_lost = true;
		j->why_lost = j->w->sentence;
	}
	return r;
}

/* The parts are the same as before. */
static int job_resume(struct held *h, const struct restart_patience *p)
{
	struct weightd_job *j = container_of(h, struct weightd_job, held);
	struct client_call call = {.tick = p->tick, .userdata = p->userdata};

	if (j->has_left || j->is_lost || j->owner != getpid())
		return 0;
	return job_rejoin(j, &call);
}

/* Another server may have the job, or not: weightd_job_check() asks it. */
static void job_forget(struct held *h)
{
	struct weightd_job *j = container_of(h, struct weightd_job, held);

	if (j->owner == getpid())
		j->id = 0;
}

static const struct held_ops job_held_ops = {job_resume, job_forget, NULL};

static struct weightd_job *job_new(struct weightd *w)
{
	struct weightd_job *j = calloc(1, sizeof(*j));

	if (!j)
		return NULL;
	list_init(&j->held.link);
	j->held.ops = &job_held_ops;
	j->w = client_ref(w);
	j->owner = getpid();
	j->description_fd = -1;
	for (uint32_t i = 0; i < WIRE_JOB_PARTS_MAX; i++)
		j->fds[i] = -1;
	return j;
}

/* Ends the presence of this connection, without a word about the rank. */
static void job_absent(struct weightd_job *j)
{
	struct client_call call = {.op = WIRE_JOB_LEAVE};
	struct sentence saved = j->w->sentence;

	if (j->id == 0 || j->w->fd < 0 || j->owner != getpid() || j->w->owner != getpid())
		return; /* it ended with the connection, or is the parent's */
	call.request.job_leave.job = j->id;
	j->id = 0;
	(void)client_ask(j->w, &call); /* the caller has given the job up in any case */
	client_call_deinit(&call);
	j->w->sentence = saved;
}

void weightd_job_free(struct weightd_job *j)
{
	if (!j)
		return;
	list_remove(&j->held.link);
	job_absent(j);
	for (uint32_t i = 1; i < WIRE_JOB_PARTS_MAX; i++)
		(void)fd_close(j->fds[i]);
	job_lock_free(j->lock);
	(void)fd_close(j->description_fd);
	client_unref(j->w);
	free(j);
}
CLEANUP_POINTER(struct weightd_job, weightd_job_free);

static bool is_kind(const char *kind)
{
	static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
	size_t n = kind ? strspn(kind, letters) : 0;

	return n > 0 && n < WIRE_KIND_SIZE && !kind[n];
}

/* Copies part i of the caller's array. Its structs have the size of the first one. */
static int copy_part(struct weightd *w, const struct weightd_join_options *o, uint32_t i,
		     struct wire_job_part *ret)
{
	const char *at = (const char *)o->parts + i * o->parts->size;
	struct weightd_part part = {0};
	int r = client_copy_options(w, at, sizeof(part), &part, sizeof(part));

	if (r < 0)
		return r;
	if (!is_kind(part.kind))
		return sentence_set(&w->sentence, -EINVAL,
				    "part %" PRIu32 " of a job needs a kind: 1 to %d of [A-Z0-9_]",
				    i, WEIGHTD_PART_KIND_MAX);
	if (part.n_bytes == 0 || part.n_bytes > INT64_MAX)
		return sentence_set(&w->sentence, -EINVAL,
				    "part %s of a job cannot have %" PRIu64 " bytes", part.kind,
				    part.n_bytes);
	ret->size = part.n_bytes;
	return CODEC_PUT_STRING(ret->kind, part.kind);
}

static int copy_parts(struct weightd *w, const struct weightd_join_options *o,
		      struct wire_job_join *join)
{
	int r = 0;

	if (o->n_parts < 1 || o->n_parts > WEIGHTD_PARTS_MAX || !o->parts)
		return sentence_set(&w->sentence, -EINVAL, "a job has 1 to %d parts, not %" PRIu32,
				    WEIGHTD_PARTS_MAX, o->n_parts);
	if (o->rank >= WEIGHTD_RANKS_MAX)
		return sentence_set(&w->sentence, -EINVAL,
				    "there is no rank %" PRIu32 ": ranks are 0 to %d", o->rank,
				    WEIGHTD_RANKS_MAX - 1);
	join->rank = o->rank;
	join->n_parts = o->n_parts;
	for (uint32_t i = 0; i < o->n_parts && r == 0; i++)
		r = copy_part(w, o, i, &join->parts[i]);
	return r;
}

static int copy_description(struct weightd_job *j, const struct weightd_join_options *o)
{
	struct sentence *s = &j->w->sentence;
	int r;

	if (!o->description || !o->description_size || o->description_size > WEIGHTD_DESCRIPTION_MAX)
		return sentence_set(s, -EINVAL,
				    "the description of a job has 1 to %d bytes, not %" PRIu64,
				    WEIGHTD_DESCRIPTION_MAX, o->description_size);
	hash128(o->description, o->description_size, j->join.hash);
	r = fd_sealed_copy("weightd-job-description", o->description, o->description_size,
			   &j->description_fd);
	return r < 0 ? sentence_set(s, r, "the description of a job has no memory: %s", strerror(-r))
		     : 0;
}

static int job_prepare(struct weightd_job *j, const char *token,
		       const struct weightd_join_options *options)
{
	struct weightd_join_options o = {0};
	struct wire_job_key key;
	int r = client_copy_options(j->w, options, sizeof(o), &o, sizeof(o));

	if (r == 0)
		r = job_token_parse(j->w, token, &key);
	if (r < 0)
		return r;
	memcpy(j->join.name, key.name, sizeof(key.name));
	memcpy(j->join.token, key.token, sizeof(key.token));
	r = copy_parts(j->w, &o, &j->join);
	return r < 0 ? r : copy_description(j, &o);
}

static int wrong_part(const struct weightd_job *j, uint32_t i, int r)
{
	return sentence_set(&j->w->sentence, r, "part %s of job '%s' cannot be used: %s",
			    j->join.parts[i].kind, j->join.name, strerror(-r));
}

/* After a restart the reply to a join is the resumed one's. */
static int part_again(struct weightd *w, struct client_call *call)
{
	const struct weightd_job *j = call->subject;

	(void)w;
	call->request.job_part.job = j->id;
	return 0;
}

static int fetch_part(struct weightd_job *j, uint32_t i, int *ret_fd)
{
	struct client_call call = {
		.op = WIRE_JOB_PART,
		.again = part_again,
		.subject = j,
		.request.job_part = {.job = j->id, .index = i},
	};
	uint64_t size = 0;
	int r = client_call_run(j->w, &call);

	if (r < 0)
		return r;
	*ret_fd = take_fd(call.reply_fds[0]);
	r = fd_size(*ret_fd, &size);
	if (r == 0 && size < j->join.parts[i].size)
		r = -EBADMSG;
	return r < 0 ? wrong_part(j, i, r) : 0;
}

/* Another rank has it for a moment, and must not be ended for that. */
static int say_acting(const struct weightd_job *j, uint32_t rank, pid_t holder)
{
	int64_t actor = job_lock_rank_of(j->lock, holder);
	char who[64] = "another rank";

	if (holder > 0 && actor >= 0)
		(void)snprintf(who, sizeof(who), "process %d, rank %" PRId64 ",", (int)holder,
			       actor);
	return sentence_set(&j->w->sentence, -EBUSY,
			    "%s is finishing the last step of rank %" PRIu32
			    " of job '%s', which died; start rank %" PRIu32 " again later",
			    who, rank, j->join.name, rank);
}

static int say_busy(const struct weightd_job *j, uint32_t rank, pid_t holder)
{
	struct sentence *s = &j->w->sentence;

	if (holder == getpid())
		return sentence_set(s, -EBUSY,
				    "this process, %d, is rank %" PRIu32
				    " of job '%s' already; free that one first (weightd_job_free)",
				    (int)holder, rank, j->join.name);
	if (j->lock && holder && job_lock_is_acting(j->lock, rank, holder))
		return say_acting(j, rank, holder);
	if (holder < 0)
		return sentence_set(s, -EBUSY,
				    "rank %" PRIu32
				    " of job '%s' is a living process of another PID namespace; end it, "
				    "or join with another rank",
				    rank, j->join.name);
	return sentence_set(s, -EBUSY,
			    "rank %" PRIu32
			    " of job '%s' is process %d, which lives; end it (kill %d), "
			    "or join with another rank",
			    rank, j->join.name, (int)holder, (int)holder);
}

/* The lock has precedence over everything: nothing of a job is used by two processes. */
static int job_lock(struct weightd_job *j)
{
	pid_t holder = 0;
	int r = fetch_part(j, 0, &j->fds[0]);

	if (j->fds[0] < 0)
		return r;
	if (r == 0)
		r = job_lock_new(j->fds[0], &j->lock);
	else
		j->fds[0] = fd_close(j->fds[0]);
	if (r < 0)
		return r;
	r = job_lock_take(j->lock, j->join.rank, &holder);
	if (r == -EBUSY)
		return say_busy(j, j->join.rank, holder);
	return r < 0 ? wrong_part(j, 0, r) : 0;
}

/* True if an object of this process is that rank, for the server as well: joining would end it. */
static int check_own(const struct weightd_job *ours)
{
	const struct weightd_job *j;
	struct held *h;

	list_for_each(h, &ours->w->jobs, link) {
		j = container_of(h, struct weightd_job, held);
		if (j->join.rank == ours->join.rank && j->owner == getpid() &&
		    !memcmp(j->join.token, ours->join.token, WIRE_TOKEN_SIZE))
			return say_busy(ours, ours->join.rank, getpid());
	}
	return 0;
}

static int job_start(struct weightd_job *j)
{
	/* Providing the memory takes as long as it takes. */
	struct client_call call = {
		.op = WIRE_JOB_JOIN,
		.timeout_ms = -1,
		.request.job_join = j->join,
		.fds = &j->description_fd,
	};
	int r = client_call_run(j->w, &call);

	if (r < 0)
		return r;
	j->id = call.reply.job_join.job;
	j->n_ranks = call.reply.job_join.n_ranks;
	list_append(&j->w->jobs, &j->held.link);
	r = job_lock(j);
	for (uint32_t i = 1; i < j->join.n_parts && r == 0; i++)
		r = fetch_part(j, i, &j->fds[i]);
	return r;
}

int weightd_job_join(struct weightd *w, const char *token,
		     const struct weightd_join_options *options, struct weightd_job **ret)
{
	cleanup(weightd_job_freep) struct weightd_job *j = job_new(w);
	int r;

	if (!j)
		return sentence_set(&w->sentence, -ENOMEM, "out of memory");
	r = job_prepare(j, token, options);
	if (r == 0)
		r = job_check_server(w);
	if (r == 0)
		r = check_own(j);
	if (r == 0)
		r = job_start(j);
	if (r == 0)
		*ret = take_ptr(j);
	return r;
}

/* --- A joined job ------------------------------------------------------------------------------- */

const char *weightd_job_name(const struct weightd_job *j)
{
	return j->join.name;
}

uint32_t weightd_job_n_ranks(const struct weightd_job *j)
{
	return j->n_ranks;
}

uint32_t weightd_job_rank(const struct weightd_job *j)
{
	return j->join.rank;
}

int weightd_job_fd(const struct weightd_job *j, uint32_t part)
{
	return part < j->join.n_parts ? j->fds[part] : -ENOENT;
}

int weightd_job_holder(const struct weightd_job *j, uint32_t rank)
{
	return rank < j->n_ranks ? (int)job_lock_holder(j->lock, rank) : -EINVAL;
}

static int check_owner(const struct weightd_job *j)
{
	if (j->owner == getpid())
		return 0;
	return sentence_set(
		&j->w->sentence, -ECHILD,
		"rank %" PRIu32
		" of job '%s' is process %d, the parent of this one; join with another rank",
		j->join.rank, j->join.name, (int)j->owner);
}

int weightd_job_hold(struct weightd_job *j, uint32_t rank)
{
	pid_t holder = 0;
	int r = check_owner(j);

	if (r < 0)
		return r;
	if (rank >= j->n_ranks || rank == j->join.rank)
		return sentence_set(&j->w->sentence, -EINVAL,
				    "rank %" PRIu32 " cannot act for rank %" PRIu32
				    ": job '%s' has ranks 0 to %" PRIu32,
				    j->join.rank, rank, j->join.name, j->n_ranks - 1);
	r = job_lock_act(j->lock, rank, &holder);
	if (r == -EBUSY)
		return say_busy(j, rank, holder);
	return r < 0 ? wrong_part(j, 0, r) : 0;
}

void weightd_job_release(struct weightd_job *j, uint32_t rank)
{
	if (rank < j->n_ranks && rank != j->join.rank && j->owner == getpid())
		job_lock_end_act(j->lock, rank);
}

static int say_gone(const struct weightd_job *j)
{
	return sentence_set(&j->w->sentence, -ESTALE,
			    "job '%s' was removed; rank %" PRIu32
			    " keeps what it has mapped, until it ends (%.200s)",
			    j->join.name, j->join.rank, j->why_lost.text);
}

static int say_absent(const struct weightd_job *j)
{
	return sentence_set(&j->w->sentence, -ENOTCONN,
			    "weightd at %s is not there; the memory of job '%s' is, and rank %" PRIu32
			    " can go on",
			    j->w->path, j->join.name, j->join.rank);
}

int weightd_job_check(struct weightd_job *j)
{
	struct client_call call = {0};
	int r = check_owner(j);

	if (r == 0)
		r = client_check_owner(j->w);
	if (r < 0 || j->has_left)
		return r;
	if (!j->is_lost && job_lock_is_removed(j->lock)) {
		j->is_lost = true;
		(void)sentence_set(&j->why_lost, -ESTALE, "there is no job '%s' any more",
				   j->join.name);
	}
	if (!j->is_lost) {
		r = restart_look(j->w);
		if (r < 0)
			return r == -ENOTCONN ? say_absent(j) : r;
	}
	if (j->is_lost)
		return say_gone(j);
	if (j->id)
		return 0;
	r = job_rejoin(j, &call);
	return j->is_lost ? say_gone(j) : r;
}

/* A job that was resumed has another number; one that was not has ended, maybe by the first request. */
static int leave_again(struct weightd *w, struct client_call *call)
{
	const struct weightd_job *j = call->subject;

	(void)w;
	call->request.job_leave.job = j->id;
	return j->is_lost;
}

int weightd_job_leave(struct weightd_job *j)
{
	struct client_call call = {
		.op = WIRE_JOB_LEAVE,
		.again = leave_again,
		.subject = j,
		.request.job_leave = {.job = j->id, .flags = WIRE_LEAVE_DONE},
	};
	int r = check_owner(j);

	if (r < 0 || j->has_left)
		return r;
	if (!j->id && j->w->fd >= 0 && !j->is_lost)
		r = weightd_job_check(j); /* joins again: only a rank can be done */
	if (j->is_lost)
		return say_gone(j);
	if (r < 0)
		return r;
	call.request.job_leave.job = j->id;
	r = client_call_run(j->w, &call);
	if (r == -ENOENT || r == -ESTALE || (j->is_lost && !call.sent)) {
		j->is_lost = true;
		j->why_lost = j->w->sentence;
		return say_gone(j);
	}
	if (r < 0)
		return r;
	j->has_left = true;
	j->id = 0;
	return 0;
}

/*
 * A token is worth as much as the job: its file is for the owner alone, and is removed when the job has ended.
 */
#include "libclient/weightctl/verbs/train_job.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libclient/weightctl/output/clock.h"
#include "libclient/weightctl/output/size.h"

#define PROGRAM_MAX 64 /* bytes of its name, in the name of a job */
#define LEAVING_NS UINT64_C(2000000000) /* how long ranks that were killed may still be listed */
#define LEAVING_MS 20
#define LINGER_MS 600000 /* of a job that no later run can resume */
#define TOKEN_DIGITS 64

/* The job in a list; false where there is none of that name. The strings are the list's. */
static bool find_job(const struct weightd_list *list, const char *name, struct weightd_job_info *ret)
{
	const struct weightd_job_info *info;

	for (size_t i = 0; (info = weightd_list_job(list, i)); i++) {
		if (strcmp(info->name, name) != 0)
			continue;
		*ret = *info;
		ret->name = NULL;
		return true;
	}
	return false;
}

/* 1: it is there; 0: it is not; or a negative errno. */
static int look_up(struct cli *cli, const char *name, struct weightd_job_info *ret)
{
	cleanup(cli_list_freep) struct weightd_list *list = NULL;
	int r = weightd_list_jobs(cli->w, &list);

	return r < 0 ? r : find_job(list, name, ret);
}

/* --- The file ----------------------------------------------------------------------------------- */

/* Returns a descriptor, or -ENOENT, or -EINVAL after printing why. */
static int open_token(const char *path, struct stat *ret)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

	if (fd < 0 && errno == ENOENT)
		return -ENOENT;
	if (fd < 0) {
		(void)cli_error("the token file '%s' cannot be opened: %s", path, strerror(errno));
		return -EINVAL;
	}
	if (fstat(fd, ret) < 0 || !S_ISREG(ret->st_mode))
		(void)cli_error("the token file '%s' is no regular file", path);
	else if (ret->st_uid != geteuid())
		(void)cli_error(
			"the token file '%s' belongs to another user, uid %u; use one of your own",
			path, ret->st_uid);
	else
		return fd;
	(void)close(fd);
	return -EINVAL;
}

/* 0; -ENOENT: there is no file; -EINVAL after printing why. */
static int read_token(struct train_job *job)
{
	struct stat st;
	int fd = open_token(job->token_file, &st);
	const char *colon;
	ssize_t n;

	if (fd < 0)
		return fd;
	n = read(fd, job->token, sizeof(job->token) - 1);
	(void)close(fd);
	job->token[n > 0 ? n : 0] = '\0';
	job->token[strcspn(job->token, "\n")] = '\0';
	colon = strchr(job->token, ':');
	if (!colon || colon == job->token || (size_t)(colon - job->token) >= sizeof(job->name) ||
	    strlen(colon + 1) != TOKEN_DIGITS) {
		(void)cli_error("'%s' has no token of a job; name another file, or one that does "
				"not exist yet",
				job->token_file);
		return -EINVAL;
	}
	if (st.st_mode & 077) {
		(void)cli_error(
			"the token file '%s' has mode %04o: others who can read it may write "
			"the memory of the job; remove the job (weightctl rm --job '%.*s') and the "
			"file, or, if no other user has read it, chmod 600 '%s'",
			job->token_file, st.st_mode & 07777, (int)(colon - job->token), job->token,
			job->token_file);
		return -EINVAL;
	}
	(void)snprintf(job->name, sizeof(job->name), "%.*s", (int)(colon - job->token), job->token);
	return 0;
}

static int write_token(const struct train_job *job)
{
	int fd = open(job->token_file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	int r = fd < 0 ? -errno : 0;

	if (r == 0 && dprintf(fd, "%s\n", job->token) < 0)
		r = -errno;
	if (fd >= 0 && close(fd) < 0 && r == 0)
		r = -errno;
	if (r == 0)
		return 0;
	if (fd >= 0)
		(void)unlink(job->token_file);
	return cli_error("the token file '%s' cannot be written: %s", job->token_file, strerror(-r));
}

/* --- The beginning ------------------------------------------------------------------------------ */

/* Returns the suffix of a script, or NULL. */
static const char *script_suffix(const char *arg)
{
	static const char *const suffixes[] = {".py", ".sh", ".pl", ".rb", ".lua", ".jl"};
	const char *dot = strrchr(arg, '.');

	for (size_t i = 0; dot && i < sizeof(suffixes) / sizeof(*suffixes); i++)
		if (!strcmp(dot, suffixes[i]))
			return dot;
	return NULL;
}

/* The program, or the script that it runs. */
static const char *find_script(char *const argv[])
{
	for (size_t i = 0; argv[i]; i++)
		if (script_suffix(argv[i]))
			return argv[i];
	return argv[0];
}

/* "python train.py" and a process become "train-4711". Letters that names cannot have become dashes. */
static void make_name(char *const argv[], char *ret, size_t size)
{
	static const char letters[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
	const char *script = find_script(argv);
	const char *slash = strrchr(script, '/');
	const char *last = slash ? slash + 1 : script, *suffix = script_suffix(last);
	char name[PROGRAM_MAX];

	(void)snprintf(name, sizeof(name), "%.*s",
		       suffix ? (int)(suffix - last) : (int)strlen(last), last);
	for (char *c = name; *c; c++)
		if (!strchr(letters, *c))
			*c = '-';
	(void)snprintf(ret, size, "%s%s-%d", strchr("._-", *name) ? "job" : "", name, (int)getpid());
}

/* Nodes may be on one machine, and each has a job of its own: "gpt" becomes "gpt-node1". */
static int complete_name(const struct train_job_request *q, const char *name,
			 char ret[WEIGHTD_NAME_MAX + 1])
{
	const size_t size = WEIGHTD_NAME_MAX + 1;
	int n = q->nodes->n > 1 ? snprintf(ret, size, "%s-node%" PRIu32, name, q->nodes->node)
				: snprintf(ret, size, "%s", name);

	if ((size_t)n < size)
		return 0;
	return cli_error("a job's name has at most %d bytes", WEIGHTD_NAME_MAX);
}

static int create_job(struct cli *cli, const struct train_job_request *q, struct train_job *job)
{
	const struct weightd_job_options options = {
		.size = sizeof(options),
		.n_ranks = q->n_ranks,
		.linger_ms = q->linger_ms || q->token_file ? q->linger_ms : LINGER_MS,
	};
	struct weightd_job_info info;
	char made[WEIGHTD_NAME_MAX + 1];
	int r;

	make_name(q->argv, made, sizeof(made));
	if (complete_name(q, q->name ? q->name : made, job->name))
		return EXIT_FAILED;
	r = weightd_job_create(cli->w, job->name, &options, job->token);
	if (r == -EEXIST && look_up(cli, job->name, &info) > 0 && info.n_ranks != q->n_ranks)
		return cli_error(
			"job '%s' exists, with %" PRIu32 " rank%s, not %" PRIu32
			"; remove it (weightctl rm --job '%s'), or choose another name (--job)",
			job->name, info.n_ranks, info.n_ranks == 1 ? "" : "s", q->n_ranks,
			job->name);
	if (r == -EEXIST)
		return cli_error(
			"job '%s' exists; resume it with the file of its token (--token-file), "
			"remove it (weightctl rm --job '%s'), or choose another name (--job)",
			job->name, job->name);
	if (r < 0)
		return cli_fail(cli, r);
	if (job->token_file && write_token(job)) {
		(void)weightd_job_remove(cli->w, job->name); /* it has no memory yet, and no user */
		return EXIT_FAILED;
	}
	return 0;
}

/* The ranks of the last run may have been killed a moment ago: weightd notices the end of each connection. */
static int wait_until_vacant(struct cli *cli, const struct train_job *job,
			     struct weightd_job_info *ret)
{
	const uint64_t end_ns = clock_now_ns() + LEAVING_NS;
	int r;

	while ((r = look_up(cli, job->name, ret)) > 0 && ret->n_present && clock_now_ns() < end_ns)
		(void)poll(NULL, 0, LEAVING_MS); /* no event announces it */
	return r;
}

static int job_gone(const struct train_job *job)
{
	return cli_error(
		"job '%s' of the token file '%s' is not there any more: it ended, or was removed; "
		"remove the file to begin a new one (rm '%s')",
		job->name, job->token_file, job->token_file);
}

static int resume_job(struct cli *cli, const struct train_job_request *q, struct train_job *job)
{
	cleanup(cli_freep) void *description = NULL;
	struct weightd_job_info info;
	char wanted[WEIGHTD_NAME_MAX + 1];
	uint64_t size;
	int r;

	if (q->name && complete_name(q, q->name, wanted))
		return EXIT_FAILED;
	if (q->name && strcmp(wanted, job->name) != 0)
		return cli_error("the token file '%s' is of job '%s', not of '%s'; leave out --job, or "
				 "name another file",
				 job->token_file, job->name, wanted);
	r = weightd_job_description(cli->w, job->token, &description, &size);
	if (r == -ENOENT)
		return job_gone(job);
	if (r < 0 && r != -ENODATA) /* no rank has joined yet */
		return cli_fail(cli, r);
	r = wait_until_vacant(cli, job, &info);
	if (r < 0)
		return cli_fail(cli, r);
	if (r == 0)
		return job_gone(job);
	if (info.n_ranks != q->n_ranks)
		return cli_error("job '%s' has %" PRIu32 " rank%s, not %" PRIu32
				 "; run it with -n %" PRIu32,
				 job->name, info.n_ranks, info.n_ranks == 1 ? "" : "s", q->n_ranks,
				 info.n_ranks);
	if (info.n_present)
		return cli_error("job '%s' has %" PRIu32
				 " living rank%s, of a run before; end them first",
				 job->name, info.n_present, info.n_present == 1 ? "" : "s");
	return 0;
}

int train_job_open(struct cli *cli, const struct train_job_request *request, struct train_job *ret)
{
	int r = -ENOENT;

	*ret = (struct train_job){.token_file = request->token_file};
	if (request->token_file)
		r = read_token(ret);
	if (r == 0)
		return resume_job(cli, request, ret);
	if (r != -ENOENT)
		return EXIT_FAILED;
	return create_job(cli, request, ret);
}

/* --- The end ------------------------------------------------------------------------------------ */

static void remove_file(const struct train_job *job)
{
	if (job->token_file && unlink(job->token_file) < 0 && errno != ENOENT)
		(void)cli_error("the token file '%s' cannot be removed: %s", job->token_file,
				strerror(errno));
}

static void remove_job(struct cli *cli, const struct train_job *job)
{
	int r = weightd_job_remove(cli->w, job->name);

	if (r < 0 && r != -ENOENT)
		(void)cli_fail(cli, r);
	remove_file(job);
}

void train_job_end(struct cli *cli, const struct train_job *job)
{
	struct weightd_job_info info = {0};
	char size[SIZE_TEXT_MAX];
	int r = wait_until_vacant(cli, job, &info);

	if (r == 0)
		remove_file(job);
	if (r < 0)
		(void)cli_error("job '%s' remains if weightd returns: %s", job->name,
				weightd_error(cli->w));
	if (r <= 0)
		return;
	(void)size_text(size, info.n_bytes);
	if (info.n_bytes == 0) {
		remove_job(cli, job); /* no rank joined it */
	} else if (!job->token_file) {
		(void)cli_error("job '%s' has not ended at step %" PRIu64
				", and its %s were freed; a run with --token-file keeps its job",
				job->name, info.step, size);
		remove_job(cli, job);
	} else {
		(void)cli_error("job '%s' has not ended at step %" PRIu64
				", and keeps %s; run the same command to resume it, or remove it "
				"(weightctl rm --job '%s')",
				job->name, info.step, size, job->name);
	}
}

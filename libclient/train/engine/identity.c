#include "libclient/train/engine/identity.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "ipc/base/quote.h"
#include "libclient/train/plan/sentence.h"

CLEANUP_POINTER(struct weightd_list, weightd_list_free);

/* A token makes a process a rank, with all the memory of the job: its file must be private. */
static int token_check_file(const char *path, int fd)
{
	struct stat st;

	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
		return train_fail(-EINVAL,
				  "$WEIGHTD_JOB_FILE '%s' is no regular file; name the file that "
				  "weightctl train run --token-file made",
				  path);
	if (st.st_uid != geteuid())
		return train_fail(-EACCES,
				  "$WEIGHTD_JOB_FILE '%s' belongs to another user, uid %u; use a file "
				  "of your own",
				  path, st.st_uid);
	if (st.st_mode & 077)
		return train_fail(-EACCES,
				  "$WEIGHTD_JOB_FILE '%s' has mode %04o: others who can read it may "
				  "write the memory of the job; chmod 600 '%s' if no other user has "
				  "read it, or create another job",
				  path, st.st_mode & 07777, path);
	return 0;
}

static int token_open(const char *path, int *ret)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK), r;

	if (fd < 0) {
		r = -errno;
		return train_fail(r, "cannot open the token of the job, $WEIGHTD_JOB_FILE '%s': %s",
				  path,
				  r == -ELOOP ? "it is a symbolic link; name the file itself"
					      : strerror(-r));
	}
	r = token_check_file(path, fd);
	if (r < 0)
		(void)close(fd);
	else
		*ret = fd;
	return r;
}

static int token_read(const char *path, char ret[WEIGHTD_TOKEN_MAX])
{
	cleanup(fd_closep) int fd = -1;
	uint64_t size;
	int r = token_open(path, &fd);

	if (r < 0)
		return r;
	r = fd_read_all(fd, ret, WEIGHTD_TOKEN_MAX, &size);
	if (r < 0)
		return train_fail(r, "cannot read the token of the job, $WEIGHTD_JOB_FILE '%s': %s",
				  path, strerror(-r));
	while (size && (ret[size - 1] == '\n' || ret[size - 1] == '\0'))
		size--;
	if (size == 0 || size == WEIGHTD_TOKEN_MAX || memchr(ret, '\0', size))
		return train_fail(-EINVAL,
				  "$WEIGHTD_JOB_FILE '%s' has no token of a job; write the one that "
				  "weightctl train run or weightd_job_create() made",
				  path);
	ret[size] = '\0';
	return 0;
}

static int token_find(const char *token, char ret[WEIGHTD_TOKEN_MAX])
{
	const char *path = getenv("WEIGHTD_JOB_FILE");

	if (!token)
		token = getenv("WEIGHTD_JOB");
	if (!token && path)
		return token_read(path, ret);
	if (!token)
		return train_fail(
			-EINVAL,
			"there is no token of a job; start this program by weightctl train run, "
			"or set $WEIGHTD_JOB or $WEIGHTD_JOB_FILE");
	if (!*token || strlen(token) >= WEIGHTD_TOKEN_MAX)
		return train_fail(
			-EINVAL,
			"the token of the job has %zu bytes; it is 'NAME:64 hexadecimal digits'",
			strlen(token));
	memcpy(ret, token, strlen(token) + 1);
	return 0;
}

static int number_find(const char *variable, uint32_t below, uint32_t *ret)
{
	const char *value = getenv(variable);
	uint64_t number;

	if (!value || num_parse(value, 10, &number) < 0 || number >= below)
		return train_fail(-EINVAL, "$%s is '%.32s'; it must be a number below %u", variable,
				  value ? value : "", below);
	*ret = (uint32_t)number;
	return 0;
}

/* The first one that the launcher has set, or NULL. */
static const char *variable_find(const char *const *variables)
{
	while (*variables && !getenv(*variables))
		variables++;
	return *variables;
}

/* An interactive shell of SLURM has its variable as well. */
static int rank_find(uint32_t *ret)
{
	static const char *const variables[] = {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "RANK",
						"SLURM_LOCALID", NULL};
	const char *variable = variable_find(variables);

	if (!variable)
		return train_fail(
			-EINVAL,
			"neither $LOCAL_RANK nor $RANK is set; start this program by weightctl "
			"train run or torchrun, or give the rank");
	return number_find(variable, WEIGHTD_RANKS_MAX, ret);
}

/* Open MPI has no variable for the node: ranks of a node are numbered one after the other. */
static int node_of_open_mpi(uint32_t *ret)
{
	uint32_t rank, n_ranks;
	int r = number_find("OMPI_COMM_WORLD_RANK", UINT32_MAX, &rank);

	if (!r)
		r = number_find("OMPI_COMM_WORLD_LOCAL_SIZE", UINT32_MAX, &n_ranks);
	if (!r)
		*ret = n_ranks ? rank / n_ranks : 0;
	return r;
}

static int node_find(uint32_t n_nodes, uint32_t *ret)
{
	static const char *const variables[] = {"GROUP_RANK", "OMPI_COMM_WORLD_RANK",
						"SLURM_NODEID", NULL};
	const char *variable = variable_find(variables);

	if (!variable)
		return train_fail(-EINVAL,
				  "the plan has %u nodes, and $GROUP_RANK is not set; start this "
				  "program by weightctl train run or torchrun, or give the node",
				  n_nodes);
	if (strcmp(variable, "OMPI_COMM_WORLD_RANK") == 0)
		return node_of_open_mpi(ret);
	return number_find(variable, UINT32_MAX, ret);
}

int identity_node(const struct weightd_nodes *nodes, uint32_t n_nodes, uint32_t *ret)
{
	uint32_t node = nodes ? nodes->node : 0;
	int r = 0;

	if (n_nodes > 1 && (!nodes || nodes->node_from_env))
		r = node_find(n_nodes, &node);
	if (!r && node >= n_nodes)
		r = train_fail(-EINVAL, "there is no node %u: the plan has %u node%s", node,
			       n_nodes, n_nodes == 1 ? "" : "s");
	if (!r)
		*ret = node;
	return r;
}

int identity_resolve(const struct weightd_train_options *options, char ret_token[WEIGHTD_TOKEN_MAX],
		     uint32_t *ret_rank)
{
	char token[WEIGHTD_TOKEN_MAX];
	uint32_t rank = options ? options->rank : 0;
	int r = token_find(options ? options->token : NULL, token);

	if (r == 0 && (!options || options->rank_from_env))
		r = rank_find(&rank);
	if (r < 0)
		return r;
	memcpy(ret_token, token, sizeof(token));
	*ret_rank = rank;
	return 0;
}

int identity_check(pid_t opener)
{
	if (opener == getpid())
		return 0;
	return train_fail(-ECHILD,
			  "the trainer belongs to process %d, which forked this one; open the job "
			  "here as another rank",
			  (int)opener);
}

int identity_count_ranks(struct weightd *w, const char *token, uint32_t *ret)
{
	cleanup(weightd_list_freep) struct weightd_list *jobs = NULL;
	size_t length = strcspn(token, ":");
	struct quote quote;
	char name[WEIGHTD_TOKEN_MAX];
	int r = weightd_list_jobs(w, &jobs);

	if (r < 0)
		return train_fail(r, "%s", weightd_error(w));
	for (size_t i = 0; i < weightd_list_count(jobs); i++) {
		const struct weightd_job_info *job = weightd_list_job(jobs, i);

		if (strncmp(job->name, token, length) == 0 && !job->name[length]) {
			*ret = job->n_ranks;
			return 0;
		}
	}
	(void)snprintf(name, sizeof(name), "%.*s", (int)length, token);
	return train_fail(-ENOENT, "this user has no job %s; create it first (weightctl train run)",
			  quote_name(&quote, name));
}

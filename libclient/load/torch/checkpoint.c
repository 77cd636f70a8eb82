#include "libclient/load/torch/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/libc.h"
#include "ipc/base/num.h"
#include "libclient/load/torch/convert_text.h"

#define TICK_MS 100
#define REPORT_FD 3 /* of the child */
#define REPORT_MAX 512
#define CHILD_FDS 10 /* descriptors from here on are no place of the child's */

#define QUOTE_PATH(path) file_quote(&(struct quote){0}, path)

/* A file in memory. */
struct converted {
	struct remote remote;
	int fd;
};

struct conversion {
	const struct file *f;
	int input, output, report, report_end; /* the child writes to the end */
	pid_t pid;
	char text[REPORT_MAX];
	size_t n_text;
	struct sentence *s;
};

/* --- Names -------------------------------------------------------------------------------------- */

static bool ends_with(const char *path, const char *end)
{
	size_t n = strlen(path), n_end = strlen(end);

	return n > n_end && !strcmp(path + n - n_end, end);
}

bool checkpoint_is(const struct file *f)
{
	static const char *const ends[] = {".bin", ".pt", ".pth", ".ckpt"};
	char start[4];
	struct sentence ignored; /* another reader of the file reports it */
	size_t i = 0;

	while (i < ARRAY_LEN(ends) && !ends_with(f->path, ends[i]))
		i++;
	return i < ARRAY_LEN(ends) && !f->is_directory && f->identity.size >= sizeof(start) &&
	       file_read(f, start, sizeof(start), 0, &ignored) == 0 &&
	       (!memcmp(start, "PK\3\4", 4) || !memcmp(start, "\x80\2", 2));
}

bool checkpoint_is_index(const char *path)
{
	return ends_with(path, ".bin.index.json");
}

/* --- The file in memory ------------------------------------------------------------------------- */

static int converted_read(struct remote *remote, void *buffer, uint64_t size, uint64_t offset,
			  struct sentence *s)
{
	const struct file f = {.path = (char *)"the converted file",
			       .fd = ((struct converted *)remote)->fd};

	return file_read(&f, buffer, size, offset, s);
}

static void converted_close(struct remote *remote)
{
	struct converted *c = (struct converted *)remote;

	(void)fd_close(c->fd);
	free(c);
}

static const struct remote_kind converted_kind = {
	.read = converted_read,
	.close = converted_close,
};

/* Takes the descriptor from the conversion. */
static int converted_new(struct conversion *c, struct file *ret)
{
	struct converted *made = malloc(sizeof(*made));
	char *path = strdup(c->f->path);
	struct stat st;

	if (!made || !path || fstat(c->output, &st) < 0) {
		free(made);
		free(path);
		return sentence_set(c->s, -ENOMEM, "out of memory");
	}
	*made = (struct converted){.remote.kind = &converted_kind, .fd = take_fd(c->output)};
	*ret = (struct file){
		.path = path,
		.fd = -1,
		.identity.size = (uint64_t)st.st_size,
		.remote = &made->remote,
	};
	return 0;
}

/* --- The child ---------------------------------------------------------------------------------- */

static void conversion_deinit(struct conversion *c)
{
	if (c->pid > 0) {
		(void)kill(c->pid, SIGKILL);
		while (waitpid(c->pid, NULL, 0) < 0 && errno == EINTR)
			;
	}
	(void)fd_close(c->input);
	(void)fd_close(c->output);
	(void)fd_close(c->report);
	(void)fd_close(c->report_end);
}

static int high(int fd)
{
	int copy = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, CHILD_FDS);

	(void)fd_close(fd);
	return copy;
}

static int open_ends(struct conversion *c)
{
	int ends[2] = {-1, -1};

	c->input = fcntl(c->f->fd, F_DUPFD_CLOEXEC, CHILD_FDS);
	c->output = high(memfd_create("weightd-checkpoint", MFD_CLOEXEC));
	if (pipe2(ends, O_CLOEXEC) < 0)
		return -errno;
	c->report = ends[0];
	c->report_end = high(ends[1]);
	return c->input < 0 || c->output < 0 || c->report_end < 0 ? -errno : 0;
}

static int spawn_with(struct conversion *c, const char *python, posix_spawn_file_actions_t *actions,
		      posix_spawnattr_t *attributes)
{
	char *argv[] = {(char *)python, (char *)"-c", (char *)convert_text, NULL};
	sigset_t none;
	int r;

	(void)sigemptyset(&none);
	(void)posix_spawnattr_setsigmask(attributes, &none);
	/* In a group of its own: Ctrl-C is for the parent. */
	(void)posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
	r = posix_spawn_file_actions_adddup2(actions, c->input, STDIN_FILENO);
	if (r == 0)
		r = posix_spawn_file_actions_adddup2(actions, c->output, STDOUT_FILENO);
	if (r == 0)
		r = posix_spawn_file_actions_addopen(actions, STDERR_FILENO, "/dev/null", O_WRONLY,
						     0);
	if (r == 0)
		r = posix_spawn_file_actions_adddup2(actions, c->report_end, REPORT_FD);
	if (r == 0)
		r = libc_spawn_close_from(actions, REPORT_FD + 1);
	if (r == 0)
		r = posix_spawnp(&c->pid, python, actions, attributes, argv, environ);
	return -r;
}

static int spawn_child(struct conversion *c)
{
	const char *python = secure_getenv("WEIGHTD_PYTHON");
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attributes;
	int r = -posix_spawn_file_actions_init(&actions);

	if (r < 0)
		return r;
	if (!python || !*python)
		python = "python3";
	r = -posix_spawnattr_init(&attributes);
	if (r == 0) {
		r = spawn_with(c, python, &actions, &attributes);
		(void)posix_spawnattr_destroy(&attributes);
	}
	(void)posix_spawn_file_actions_destroy(&actions);
	if (r < 0) {
		c->pid = 0;
		return sentence_set(
			c->s, -EOPNOTSUPP,
			"%s is a checkpoint of torch, and %s, which would convert it, "
			"cannot be started (%s): set WEIGHTD_PYTHON to a Python with torch",
			QUOTE_PATH(c->f->path), quote_name(&(struct quote){0}, python),
			strerror(-r));
	}
	c->report_end = fd_close(c->report_end);
	return 0;
}

/* All that the child reports until it ends. */
static int await_report(struct conversion *c, bool (*is_stopped)(void *userdata), void *userdata)
{
	struct pollfd p = {.fd = c->report, .events = POLLIN};
	ssize_t n = 1;

	while (n != 0) {
		if (is_stopped(userdata))
			return sentence_set(c->s, -ECANCELED, "the load was cancelled");
		if (poll(&p, 1, TICK_MS) <= 0)
			continue;
		n = read(c->report, c->text + c->n_text, sizeof(c->text) - 1 - c->n_text);
		if (n < 0 && errno != EINTR)
			n = 0;
		if (n > 0)
			c->n_text += (size_t)n;
	}
	return 0;
}

/* The text may have names that the file has. */
static int judge(struct conversion *c)
{
	if (c->n_text == 3 && !memcmp(c->text, "ok\n", 3))
		return 0;
	c->n_text -= c->n_text > 0;
	for (size_t i = 0; i < c->n_text; i++)
		if (c->text[i] < ' ' || c->text[i] > '~')
			c->text[i] = '?';
	c->text[c->n_text] = '\0';
	return sentence_set(c->s, strstr(c->text, " has no torch ") ? -EOPNOTSUPP : -EBADMSG,
			    "%s is a checkpoint of torch that cannot be converted: %.330s",
			    QUOTE_PATH(c->f->path),
			    c->n_text ? c->text : "the process that reads it ended without a word");
}

int checkpoint_convert(struct file *f, bool (*is_stopped)(void *userdata), void *userdata,
		       struct sentence *s)
{
	cleanup(conversion_deinit) struct conversion c = {
		.f = f, .input = -1, .output = -1, .report = -1, .report_end = -1, .s = s};
	struct file made;
	int r;

	if (f->remote)
		return sentence_set(s, -EOPNOTSUPP,
				    "%s is a checkpoint of torch, which is converted from a disk "
				    "only: download it first",
				    QUOTE_PATH(f->path));
	r = open_ends(&c);
	if (r < 0)
		return sentence_set(s, r, "%s cannot be converted: %s", QUOTE_PATH(f->path),
				    strerror(-r));
	r = spawn_child(&c);
	if (r == 0)
		r = await_report(&c, is_stopped, userdata);
	if (r == 0)
		r = judge(&c);
	if (r == 0)
		r = file_check_unchanged(f, s);
	if (r == 0)
		r = converted_new(&c, &made);
	if (r < 0)
		return r;
	file_deinit(f);
	*f = made;
	return 0;
}

/*
 * weightctl: the command line of weightd
 *
 * It knows the library through weightd.h alone: what it can do, any program can. One verb is one file
 * and one row of `verbs`; those whose names begin with the same word are a family and share one. Output that could not be written is a failure, found at exit.
 */
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libclient/weightctl/cli.h"
#include "libclient/weightctl/verb.h"

static const struct verb *const verbs[] = {
	&verb_load,
	&verb_ls,
	&verb_show,
	&verb_tensors,
	&verb_cat,
	&verb_verify,
	&verb_history,
	&verb_rollback,
	&verb_chmod,
	&verb_chown,
	&verb_rm,
	&verb_wait,
	&verb_watch,
	&verb_stat,
	&verb_devices,
	&verb_ping,
	&verb_version,
	&verb_nodes,
	&verb_sync_push,
	&verb_sync_average,
	&verb_sync_reshard,
	&verb_sync_gather,
	&verb_sync_scatter,
	&verb_sync_status,
	&verb_sync_history,
	&verb_sync_cancel,
	&verb_sync_watch,
	&verb_sync_metrics,
	&verb_sync_plan,
	&verb_pki_ca,
	&verb_pki_node,
	&verb_pki_revoke,
	&verb_pki_show,
	&verb_top,
	&verb_trace_doctor,
	&verb_trace_record,
	&verb_trace_explain,
	&verb_trace_merge,
	&verb_trace_metrics,
	&verb_trace_rdma,
	&verb_trace_messages,
	&verb_trace_watch,
	&verb_trace_log,
	&verb_trace_attached,
};

#define N_VERBS (sizeof(verbs) / sizeof(*verbs))

/*
 * A standard descriptor that the caller closed must not become the connection's. What takes its place
 * fails like a closed one: input cannot be read, output cannot be written.
 */
static void hold_standard_descriptors(void)
{
	for (int fd = 0; fd <= STDERR_FILENO; fd++)
		if (fcntl(fd, F_GETFD) < 0)
			(void)open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

static void close_stdout(void)
{
	bool failed = ferror(stdout);

	errno = 0;
	if (fclose(stdout) < 0)
		failed = true;
	if (!failed)
		return;
	if (errno != EPIPE) /* who reads no further knows why */
		(void)cli_error("cannot write to standard output%s%s", errno ? ": " : "",
				errno ? strerror(errno) : "");
	_exit(EXIT_FAILED);
}

static void help(void)
{
	(void)puts("Usage: weightctl [--socket PATH] VERB [options] [arguments]\n\n"
		   "Load, list and check the model weights that weightd shares between processes.\n\n"
		   "Verbs:");
	for (size_t i = 0; i < N_VERBS; i++)
		(void)printf(" %-14s  %s\n", verbs[i]->name, verbs[i]->summary);
	(void)puts("\nOptions:\n"
		   "     --socket PATH  socket of the server; else $WEIGHTD_SOCKET, else\n"
		   "                    $XDG_RUNTIME_DIR/weightd.sock, else the system's,\n"
		   "                    /run/weightd/weightd.sock\n"
		   "     --sync-socket PATH\n"
		   "                    socket of weightd-sync; else $WEIGHTD_SYNC_SOCKET, else\n"
		   "                    /run/weightd-sync/sync.sock\n"
		   "     --trace-socket PATH\n"
		   "                    socket of weightd-trace; else $WEIGHTD_TRACE_SOCKET, else\n"
		   "                    /run/weightd-trace/trace.sock\n"
		   " -h, --help         this text; after a verb, that of the verb\n"
		   " -V, --version      the version of weightctl\n\n"
		   "Exit codes: 0 done, 1 refused or failed, 2 usage, 128+N ended by signal N.\n"
		   "weightctl(1) has the details.");
}

/* What stands behind the first word of the verb's name, if that is `word`: "" where it is all of it. */
static const char *rest_of_name(const struct verb *verb, const char *word)
{
	size_t n = strcspn(verb->name, " ");

	if (strncmp(verb->name, word, n) || word[n])
		return NULL;
	return verb->name + n + (verb->name[n] == ' ');
}

static void help_family(const char *family)
{
	const char *rest;

	(void)printf("Usage: weightctl %s VERB [options] [arguments]\n\nVerbs:\n", family);
	for (size_t i = 0; i < N_VERBS; i++)
		if ((rest = rest_of_name(verbs[i], family)))
			(void)printf(" %-8s  %s\n", rest, verbs[i]->summary);
	(void)printf("\n'weightctl %s VERB --help' has the options of one.\n", family);
	for (size_t i = 0; i < N_VERBS; i++)
		if ((rest = rest_of_name(verbs[i], family)) && verbs[i]->is_usual)
			(void)printf("Where options stand in its place, it is %s.\n", rest);
}

static bool is_help(const char *word)
{
	return !strcmp(word, "--help") || !strcmp(word, "-h");
}

/* Ends the program: `argv` begins with the name of a family, and no verb of it follows. */
_Noreturn static void end_in_family(struct cli *cli, char *argv[])
{
	const struct verb family = {.name = argv[0]};

	if (argv[1] && is_help(argv[1])) {
		help_family(argv[0]);
		exit(EXIT_SUCCESS);
	}
	cli->verb = &family;
	if (!argv[1])
		cli_usage(cli, "'%s' wants to know what to do", argv[0]);
	cli_usage(cli, "'%s' cannot do '%s'", argv[0], argv[1]);
}

/* The verb that `argv` begins with, and of how many words. No verb ends the program. */
static const struct verb *find(struct cli *cli, char *argv[], int *ret_words)
{
	const char *rest;
	bool is_family = false;

	for (size_t i = 0; i < N_VERBS; i++) {
		rest = rest_of_name(verbs[i], argv[0]);
		if (!rest)
			continue;
		is_family = *rest;
		if (verbs[i]->is_usual && argv[1] && argv[1][0] == '-' && !is_help(argv[1])) {
			*ret_words = 1;
			return verbs[i];
		}
		if (*rest && (!argv[1] || strcmp(rest, argv[1]) != 0))
			continue;
		*ret_words = *rest ? 2 : 1;
		return verbs[i];
	}
	if (is_family)
		end_in_family(cli, argv);
	cli_usage(cli, "there is no verb '%s'", argv[0]);
}

/* Options that stand before the verb. */
static void global_options(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		{"version", no_argument, NULL, 'V'},
		{"socket", required_argument, NULL, OPTION_SOCKET},
		{"trace-socket", required_argument, NULL, OPTION_TRACE_SOCKET},
		OPTIONS_AGENT,
		{},
	};
	int option;

	/* '+': the first argument that is no option is the verb */
	while ((option = getopt_long(argc, argv, "+:hV", longs, NULL)) >= 0) {
		switch (option) {
		case OPTION_SOCKET:
			cli->socket = optarg;
			break;
		case OPTION_SYNC_SOCKET:
			cli->sync_socket = optarg;
			break;
		case OPTION_TRACE_SOCKET:
			cli->trace_socket = optarg;
			break;
		case 'h':
			help();
			exit(EXIT_SUCCESS);
		case 'V':
			(void)printf("weightctl %s\n", weightd_release());
			exit(EXIT_SUCCESS);
		default:
			cli_wrong_option(cli, option, argv);
		}
	}
}

int main(int argc, char *argv[])
{
	struct cli cli = {};
	int status, words;

	hold_standard_descriptors();
	(void)atexit(close_stdout);
	opterr = 0;
	(void)setlocale(LC_CTYPE, ""); /* only what can be printed; numbers stay as they are */
	global_options(&cli, argc, argv);
	if (optind >= argc)
		cli_usage(&cli, "no verb was given");
	cli.verb = find(&cli, argv + optind, &words);

	optind += words - 1;
	argc -= optind; /* the verb takes the place of the program's name */
	argv += optind;
	optind = 0; /* glibc: start anew */
	status = cli.verb->run(&cli, argc, argv);
	weightd_list_free(cli.devices);
	weightd_close(cli.w);
	return status;
}

/*
 * weightctl: the command line of weightd
 *
 * It uses the library through weightd.h alone, so any program can do the same. One verb is one file and one row of
 * `verbs`; verbs with a common first word are a family. A failed write to standard output is found at exit, and is a
 * failure.
 */
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/suggestion.h"
#include "libclient/weightctl/cli.h"
#include "libclient/weightctl/verb.h"

static const struct verb verb_help;

/* A heading stands above the first verb of its group. */
static const struct {
	const struct verb *verb;
	const char *heading;
} verbs[] = {
	{&verb_load, "Buffers"},
	{&verb_ls, NULL},
	{&verb_show, NULL},
	{&verb_tensors, NULL},
	{&verb_files, NULL},
	{&verb_cat, NULL},
	{&verb_verify, NULL},
	{&verb_diff, NULL},
	{&verb_copy, NULL},
	{&verb_save, NULL},
	{&verb_history, NULL},
	{&verb_rollback, NULL},
	{&verb_chmod, NULL},
	{&verb_chown, NULL},
	{&verb_rm, NULL},
	{&verb_wait, NULL},
	{&verb_watch, NULL},
	{&verb_exec, "Programs"},
	{&verb_export, NULL},
	{&verb_train_run, "Training"},
	{&verb_train_status, NULL},
	{&verb_train_metrics, NULL},
	{&verb_train_profile, NULL},
	{&verb_doctor, "The server"},
	{&verb_stat, NULL},
	{&verb_metrics, NULL},
	{&verb_devices, NULL},
	{&verb_ping, NULL},
	{&verb_version, NULL},
	{&verb_nodes, "Between nodes"},
	{&verb_sync_push, NULL},
	{&verb_sync_average, NULL},
	{&verb_sync_reshard, NULL},
	{&verb_sync_gather, NULL},
	{&verb_sync_scatter, NULL},
	{&verb_sync_status, NULL},
	{&verb_sync_history, NULL},
	{&verb_sync_cancel, NULL},
	{&verb_sync_watch, NULL},
	{&verb_sync_metrics, NULL},
	{&verb_sync_plan, NULL},
	{&verb_pki_ca, "Certificates"},
	{&verb_pki_node, NULL},
	{&verb_pki_revoke, NULL},
	{&verb_pki_show, NULL},
	{&verb_top, "Traffic"},
	{&verb_trace_doctor, NULL},
	{&verb_trace_record, NULL},
	{&verb_trace_explain, NULL},
	{&verb_trace_merge, NULL},
	{&verb_trace_metrics, NULL},
	{&verb_trace_rdma, NULL},
	{&verb_trace_messages, NULL},
	{&verb_trace_watch, NULL},
	{&verb_trace_log, NULL},
	{&verb_trace_attached, NULL},
	{&verb_help, "Help"},
};

#define N_VERBS (sizeof(verbs) / sizeof(*verbs))

/*
 * A standard descriptor that the caller closed must not become the connection's. What takes its place
 * fails like a closed one: input cannot be read, output cannot be written. A program that a verb runs gets them closed.
 */
static void hold_standard_descriptors(void)
{
	for (int fd = 0; fd <= STDERR_FILENO; fd++)
		if (fcntl(fd, F_GETFD) < 0)
			(void)open("/dev/null",
				   (fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) | O_CLOEXEC);
}

/* The error of the first write that failed: stdio drops what it holds then, and may not try again. */
static int output_error;

static ssize_t output_write(void *cookie, const char *data, size_t size)
{
	ssize_t n = write(STDOUT_FILENO, data, size);

	(void)cookie;
	if (n < 0 && !output_error)
		output_error = errno;
	return n < 0 ? 0 : n; /* 0 is how a stream of this kind fails */
}

static void close_stdout(void)
{
	if (fclose(stdout) == 0 && !output_error)
		return;
	if (output_error != EPIPE) /* a reader that closed the pipe needs no message */
		(void)cli_error("cannot write to standard output: %s", strerror(output_error));
	_exit(EXIT_FAILED);
}

static void open_stdout(void)
{
	FILE *f = fopencookie(NULL, "w", (cookie_io_functions_t){.write = output_write});

	if (!f)
		cli_out_of_memory();
	if (isatty(STDOUT_FILENO))
		(void)setvbuf(f, NULL, _IOLBF, 0);
	stdout = f;
	(void)atexit(close_stdout);
}

static void help(void)
{
	(void)puts("Usage: weightctl [--socket PATH] VERB [options] [arguments]\n\n"
		   "Load, list and check the model weights that weightd shares between processes.");
	for (size_t i = 0; i < N_VERBS; i++) {
		if (verbs[i].heading)
			(void)printf("\n%s:\n", verbs[i].heading);
		(void)printf(" %-14s  %s\n", verbs[i].verb->name, verbs[i].verb->summary);
	}
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

/* The rest of the verb's name behind its first word, if that is `word`: "" if there is none. */
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
		if ((rest = rest_of_name(verbs[i].verb, family)))
			(void)printf(" %-8s  %s\n", rest, verbs[i].verb->summary);
	(void)printf("\n'weightctl %s VERB --help' has the options of one.\n", family);
	for (size_t i = 0; i < N_VERBS; i++)
		if ((rest = rest_of_name(verbs[i].verb, family)) && verbs[i].verb->is_usual)
			(void)printf("Without VERB before options, it is %s.\n", rest);
}

static bool is_help(const char *word)
{
	return !strcmp(word, "--help") || !strcmp(word, "-h");
}

/* Words of other programs for verbs that have another name here. */
static const struct {
	const char *word, *verb;
} synonyms[] = {
	{"list", "ls"},   {"remove", "rm"},  {"delete", "rm"},   {"unload", "rm"},
	{"info", "show"}, {"stats", "stat"}, {"status", "stat"},
};

#define N_SYNONYMS (sizeof(synonyms) / sizeof(*synonyms))
#define FAMILY_MAX 16

/* The verb or family that is meant by `word`; NULL: none is near. Valid until the next call. */
static const char *meant(const char *word)
{
	static char families[N_VERBS][FAMILY_MAX];
	const char *names[2 * N_VERBS];
	unsigned n = 0;

	for (size_t i = 0; i < N_SYNONYMS; i++)
		if (!strcmp(synonyms[i].word, word))
			return synonyms[i].verb;
	for (size_t i = 0; i < N_VERBS; i++) {
		const char *name = verbs[i].verb->name, *space = strchr(name, ' ');

		if (space && !strcmp(space + 1, word))
			return name;
		names[n++] = name;
		if (!space)
			continue;
		(void)snprintf(families[i], FAMILY_MAX, "%.*s", (int)(space - name), name);
		names[n++] = families[i];
	}
	return suggestion_find(word, strlen(word), names, n);
}

/* The same for a verb of a family, by its name without that of the family. */
static const char *meant_in(const char *family, const char *word)
{
	const char *names[N_VERBS], *rest;
	unsigned n = 0;

	for (size_t i = 0; i < N_VERBS; i++)
		if ((rest = rest_of_name(verbs[i].verb, family)))
			names[n++] = rest;
	return suggestion_find(word, strlen(word), names, n);
}

_Noreturn static void end_without_verb(const struct cli *cli, const char *word)
{
	const char *verb = meant(word);

	if (verb)
		cli_usage(cli, "there is no verb '%s'; is it '%s'?", word, verb);
	cli_usage(cli, "there is no verb '%s'", word);
}

/* Ends the program: `argv` begins with the name of a family, and no verb of it follows. */
_Noreturn static void end_in_family(struct cli *cli, char *argv[])
{
	const struct verb family = {.name = argv[0]};
	const char *verb;

	if (argv[1] ? is_help(argv[1]) : cli->verb == &verb_help) {
		help_family(argv[0]);
		exit(EXIT_SUCCESS);
	}
	cli->verb = &family;
	if (!argv[1])
		cli_usage(cli, "'%s' needs a verb", argv[0]);
	verb = meant_in(argv[0], argv[1]);
	if (verb)
		cli_usage(cli, "'%s' cannot do '%s'; is it '%s'?", argv[0], argv[1], verb);
	cli_usage(cli, "'%s' cannot do '%s'", argv[0], argv[1]);
}

/* The verb that `argv` begins with, and of how many words. No verb ends the program. */
static const struct verb *verb_find(struct cli *cli, char *argv[], int *ret_words)
{
	const char *rest;
	bool is_family = false;

	for (size_t i = 0; i < N_VERBS; i++) {
		const struct verb *verb = verbs[i].verb;

		rest = rest_of_name(verb, argv[0]);
		if (!rest)
			continue;
		is_family = *rest;
		if (verb->is_usual && argv[1] && argv[1][0] == '-' && !is_help(argv[1])) {
			*ret_words = 1;
			return verb;
		}
		if (*rest && (!argv[1] || strcmp(rest, argv[1]) != 0))
			continue;
		*ret_words = *rest ? 2 : 1;
		return verb;
	}
	if (is_family)
		end_in_family(cli, argv);
	end_without_verb(cli, argv[0]);
}

static int help_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {OPTION_HELP, {}};
	const struct verb *verb;
	int words;

	(void)cli_option(cli, argc, argv, LETTERS_COMMON, longs);
	if (argc == optind) {
		help();
		return 0;
	}
	verb = verb_find(cli, argv + optind, &words);
	if (argc - optind > words)
		cli_usage(cli, "'help' takes one verb");
	cli_help(verb);
	return 0;
}

static const struct verb verb_help = {
	.name = "help",
	.args = "[VERB]",
	.summary = "Show this text, or the options of a verb",
	.peer = PEER_NONE,
	.run = help_run,
};

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
	open_stdout();
	opterr = 0;
	(void)setlocale(LC_CTYPE, ""); /* only what can be printed; numbers stay as they are */
	global_options(&cli, argc, argv);
	if (optind >= argc)
		cli_usage(&cli, "no verb was given");
	cli.verb = verb_find(&cli, argv + optind, &words);
	cli.format.verb = cli.verb->name;

	optind += words - 1;
	argc -= optind; /* the verb takes the place of the program's name */
	argv += optind;
	optind = 0; /* glibc: start anew */
	status = cli.verb->run(&cli, argc, argv);
	weightd_list_free(cli.devices);
	weightd_close(cli.w);
	return status;
}

/*
 * The state and the helpers shared by all verbs: options, arguments, the connection, usage errors
 */
#pragma once

#include <getopt.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libclient/weightctl/output/cli_error.h"
#include "libclient/weightctl/output/table.h"
#include "weightd.h"

struct column;
struct cli;

/* The peer of a verb, which determines its option for a socket. */
enum verb_peer {
	PEER_SERVER,
	PEER_AGENT,
	PEER_TRACER,
	PEER_NONE,
};

/* One verb, one file; main.c has the table. */
struct verb {
	const char *name; /* "ls"; or "pki ca", one of the family "pki" */
	const char *args; /* "NAME PATH..." */
	const char *summary;
	const char *options; /* help of its options, a line each; may be NULL */
	const struct column *columns; /* columns that -o can select; NULL without a table */
	enum verb_peer peer;
	unsigned patience_s; /* time limit for replies of an agent; 0: CONTROL_ANSWER_S */
	bool is_usual; /* the one of its family that is meant where an option follows that */
	int (*run)(struct cli *cli, int argc, char *argv[]);
};

struct cli {
	struct weightd *w;
	const struct verb *verb;
	const char *socket;
	const char *sync_socket; /* socket of the agent */
	const char *trace_socket; /* socket of weightd-trace */
	const uint32_t *owner; /* the user that --owner names, by its uid; NULL: not given */
	const char *device; /* NULL: not given; once connected as the server calls it */
	struct weightd_list *devices; /* NULL: not asked for yet; see device.h */
	bool without_devices; /* it was, and failed */
	struct table_format format;
};

/* Long options without a letter; those of a verb count from OPTION_OWN. */
enum {
	OPTION_SOCKET = 256,
	OPTION_SYNC_SOCKET,
	OPTION_TRACE_SOCKET,
	OPTION_DEVICE,
	OPTION_OWNER,
	OPTION_OWN,
};

/* clang-format off */
#define OPTION_HELP                                                                                \
	{ "help", no_argument, NULL, 'h' }
#define OPTIONS_COMMON                                                                             \
	{ "socket", required_argument, NULL, OPTION_SOCKET },                                      \
	OPTION_HELP
#define OPTIONS_AGENT                                                                              \
	{ "sync-socket", required_argument, NULL, OPTION_SYNC_SOCKET },                            \
	OPTION_HELP
#define OPTIONS_TRACER                                                                             \
	{ "trace-socket", required_argument, NULL, OPTION_TRACE_SOCKET },                          \
	OPTION_HELP
#define OPTIONS_DEVICE                                                                             \
	{ "device", required_argument, NULL, OPTION_DEVICE }
#define OPTIONS_OWNER                                                                              \
	{ "owner", required_argument, NULL, OPTION_OWNER }
#define OPTIONS_JSON                                                                               \
	{ "json", no_argument, NULL, 'J' }
#define OPTIONS_TABLE                                                                              \
	OPTIONS_JSON,                                                                              \
	{ "output", required_argument, NULL, 'o' },                                                \
	{ "noheadings", no_argument, NULL, 'n' },                                                  \
	{ "bytes", no_argument, NULL, 'b' }
/* clang-format on */

#define LETTERS_COMMON ":h" /* the colon: getopt reports a missing argument differently */
#define LETTERS_JSON LETTERS_COMMON "J"
#define LETTERS_TABLE LETTERS_JSON "o:nb"

#define HELP_DEVICE "     --device DEVICE    device of the buffer: host, or cuda:0 (host)\n"
#define HELP_OWNER "     --owner USER       only a buffer of this user, by name or uid\n"
#define HELP_JSON " -J, --json             write JSON\n"
#define HELP_TABLE                                                                                 \
	HELP_JSON                                                                                  \
	" -o, --output COLUMNS   columns to show, by commas; +COLUMNS adds to the usual\n"         \
	" -n, --noheadings       leave out the headings\n"                                         \
	" -b, --bytes            sizes in bytes\n"

/*
 * The next option of a verb, or -1 after the last. Shared ones are handled inside; a wrong one ends
 * the program with EXIT_USAGE, --help with 0.
 */
int cli_option(struct cli *cli, int argc, char *argv[], const char *letters,
	       const struct option *options);

/* The number in `arg`, or the end of the program. `what` names the argument: "--keep". */
uint64_t cli_number(const struct cli *cli, const char *what, const char *arg, int base,
		    uint64_t min, uint64_t max);

/* The same for bytes, which may end with k, M, G or T: powers of 1000. */
uint64_t cli_bytes(const struct cli *cli, const char *what, const char *arg);

/* The seconds in `arg` as milliseconds, rounded up, or the end of the program. */
int cli_seconds(const struct cli *cli, const char *what, const char *arg);

/* A duration as milliseconds: "90", "1.5s", "10m", "2h", "7d", or the end of the program. Not 0. */
int64_t cli_duration(const struct cli *cli, const char *what, const char *arg);

/* Ends the program, for what getopt_long() returned: '?' or ':'. */
_Noreturn void cli_wrong_option(const struct cli *cli, int option, char *argv[]);
/* Ends the program with EXIT_USAGE. */
_Noreturn __attribute__((format(printf, 2, 3))) void cli_usage(const struct cli *cli,
							       const char *fmt, ...);
/* cli_error() with the sentence of the connection, for the failure `r`. */
int cli_fail(const struct cli *cli, int r);

/*
 * True for a buffer of `uid` if the option --owner names no other user. Else false, and the sentence of a buffer that may
 * not be used was printed.
 */
bool cli_owns(const struct cli *cli, const char *name, uint32_t uid);

/* The device asked for. */
const char *cli_device(const struct cli *cli);

/* NAME or NAME@VERSION. */
struct target {
	const char *name;
	uint64_t version; /* 0: none given */
};

/* Cuts `arg` at its '@'; a wrong version ends the program. */
struct target cli_target(const struct cli *cli, char *arg);
/*
 * All that is left of the arguments, at least one: nothing is done for the first before the last is
 * understood. The caller frees it.
 */
struct target *cli_targets(const struct cli *cli, int argc, char *argv[], size_t *ret_n);
/* `arg` as a name that cannot carry a version. */
const char *cli_name(const struct cli *cli, const char *arg);

static inline void cli_list_freep(struct weightd_list **l)
{
	weightd_list_free(*l);
}

/* The help of one verb, to standard output. */
void cli_help(const struct verb *verb);

/*
 * weightctl load: files into the next version of a buffer.
 *
 * A signal only raises a flag; the next call of the progress function asks the library to stop, which
 * leaves nothing behind. If it cannot, because a read of the files does not return, the program ends, and weightd cleans up
 * after us.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/libc.h"
#include "libclient/weightctl/cli.h"
#include "libclient/weightctl/device.h"
#include "libclient/weightctl/output/column.h"
#include "libclient/weightctl/output/progress.h"
#include "libclient/weightctl/output/size.h"
#include "libclient/weightctl/server.h"
#include "libclient/weightctl/stopping.h"
#include "libclient/weightctl/verb.h"
#include "libclient/weightctl/verbs/load_node.h"
#include "libclient/weightctl/verbs/load_plan.h"

enum {
	OPTION_MODE = OPTION_OWN,
	OPTION_KEEP,
	OPTION_THREADS,
	OPTION_NEW_LAYOUT,
	OPTION_EXCLUSIVE,
	OPTION_REUSABLE,
	OPTION_REPLACE,
	OPTION_POLICY,
	OPTION_PAUSE_TIMEOUT,
	OPTION_HANDLE,
	OPTION_NO_FILES,
	OPTION_ATTRIBUTE,
	OPTION_INCLUDE,
	OPTION_EXCLUDE,
	OPTION_DTYPE,
	OPTION_TP,
	OPTION_TP_RULES,
	OPTION_IF_NEEDED,
	OPTION_DRY_RUN,
	OPTION_READ,
	OPTION_CACHE,
	OPTION_VERIFY,
	OPTION_TIMEOUT,
	OPTION_MAX_RATE,
	OPTION_SHARE,
	OPTION_NUMA,
};

#define RANKS_MAX 4096 /* of tensor parallelism */
#define RANK_NAME_MAX 320 /* "NAME-tpRANK" */

/* Words of the command line that are not options of the library. */
struct request {
	const char *name;
	char **paths;
	int n_paths;
	bool if_needed;
	bool dry_run;
	bool quiet;
	const char *for_files; /* the first option, by its long name, that other nodes know nothing of */
	char *device_list; /* several devices, to be resolved once connected; NULL: one */
	unsigned *ranks; /* several ranks, as --tp has them; NULL: one, or none */
	size_t n_ranks;
};

/* Devices of one load, and what was published there. */
struct destinations {
	const char *names[DEVICES_MAX];
	uint64_t versions[DEVICES_MAX];
	size_t n;
};

struct loaded {
	const char *name;
	const char *device;
	struct weightd_load_result result;
};

/* JSON has what was done in place of io_uring as a word of its own: null where nothing had to be. */
static const char *ring_word(const void *row, bool json)
{
	const struct loaded *l = row;
	const char *name = libc_error_name(-l->result.ring_error);

	(void)json;
	if (l->result.ring_error == 0)
		return NULL;
	return name ? name : strerror(-l->result.ring_error);
}

static const char *verified_word(const void *row, bool json)
{
	const struct loaded *l = row;

	(void)json;
	return weightd_verify_name(l->result.verified);
}

#define RESULT(member) offsetof(struct loaded, result.member)

static const struct column columns[] = {
	COLUMN("NAME", COLUMN_TEXT, offsetof(struct loaded, name)),
	COLUMN("DEVICE", COLUMN_TEXT, offsetof(struct loaded, device)),
	COLUMN("VERSION", COLUMN_U64, RESULT(version)),
	COLUMN("TENSORS", COLUMN_U64, RESULT(n_tensors)),
	COLUMN("FILES", COLUMN_U64, RESULT(n_files)),
	COLUMN("SIZE", COLUMN_SIZE, RESULT(n_bytes)),
	COLUMN("ELAPSED", COLUMN_DURATION, RESULT(elapsed_ns)),
	COLUMN("MEMORY", COLUMN_DURATION, RESULT(memory_ns)),
	COLUMN("READ", COLUMN_DURATION, RESULT(read_ns)),
	COLUMN("DIGEST", COLUMN_DIGEST, RESULT(digest)),
	COLUMN("DIRECT", COLUMN_SIZE, RESULT(n_direct_bytes)),
	{.name = "RING_ERROR", .kind = COLUMN_WORD, .word = ring_word},
	{.name = "VERIFIED", .kind = COLUMN_WORD, .word = verified_word},
	COLUMN("SHARED", COLUMN_BOOL, RESULT(is_shared)),
	{},
};

/* Once the publish begins, it is for the server to say how it ended. */
static int load_progress(void *userdata, const char *phase, uint64_t done, uint64_t total)
{
	progress_update(userdata, phase, done, total);
	if (!strcmp(phase, "publish"))
		stopping_settle();
	return stopping_signal();
}

static void load_catch(const struct progress *progress, unsigned timeout_ms)
{
	static char words[128];

	(void)snprintf(words, sizeof(words),
		       "%sweightctl: ended while a read of the files does not return; nothing was "
		       "published\n",
		       progress_clear(progress));
	stopping_catch(words, (int)timeout_ms);
}

/* Before the first line of progress: nothing has to be redrawn. */
static void load_note(void *userdata, const char *text)
{
	(void)userdata;
	(void)cli_error("%s", text);
}

static void print_result(struct cli *cli, const struct loaded *l)
{
	char size[SIZE_TEXT_MAX], time[SIZE_TEXT_MAX], rate[SIZE_TEXT_MAX];
	char digest[COLUMN_DIGEST_MAX];
	const struct weightd_load_result *r = &l->result;

	(void)printf("%s@%" PRIu64 " on %s: %" PRIu64 " tensor%s, %s in %s (%s), digest %s%s%s%s\n",
		     l->name, r->version, device_short(cli, l->device), r->n_tensors,
		     r->n_tensors == 1 ? "" : "s", size_text(size, r->n_bytes),
		     size_duration(time, r->elapsed_ns), size_rate(rate, r->n_bytes, r->elapsed_ns),
		     column_digest(digest, r->digest), r->verified ? ", verified by " : "",
		     r->verified ? weightd_verify_name(r->verified) : "",
		     r->is_shared ? ", in the memory of another version" : "");
}

static void print_ring_error(const struct loaded *l)
{
	if (l->result.ring_error)
		(void)cli_error("io_uring cannot be used here (%s); read without it, by pread()",
				strerror(-l->result.ring_error));
}

static int load_fail(const struct cli *cli, int r)
{
	if (r == -ECANCELED && stopping_signal()) {
		(void)cli_error("interrupted: %s", weightd_error(cli->w));
		return EXIT_SIGNAL + stopping_signal();
	}
	return cli_fail(cli, r);
}

/* A row, or for several devices an object with a row of each. */
static void print_json(const struct loaded *l, const struct destinations *to)
{
	struct json json = {.file = stdout};
	struct loaded row = *l;

	if (to->n == 1) {
		column_json_object(columns, l);
		return;
	}
	json_open(&json, NULL, '{');
	json_open(&json, "loads", '[');
	for (size_t i = 0; i < to->n; i++) {
		row.device = to->names[i];
		row.result.version = to->versions[i];
		json_open(&json, NULL, '{');
		column_json_all(columns, &row, &json);
		json_close(&json, '}');
	}
	json_close(&json, ']');
	json_close(&json, '}');
}

static void print_lines(struct cli *cli, const struct loaded *l, const struct destinations *to)
{
	struct loaded row = *l;

	for (size_t i = 0; i < to->n; i++) {
		row.device = to->names[i];
		row.result.version = to->versions[i];
		print_result(cli, &row);
	}
}

/* A line or an object for each rank, the first of which `first` has. */
static void print_ranks(struct cli *cli, const struct request *q, const struct loaded *first,
			const struct weightd_load_result *more)
{
	struct json json = {.file = stdout};
	char name[RANK_NAME_MAX];

	if (cli->format.json) {
		json_open(&json, NULL, '{');
		json_open(&json, "loads", '[');
	}
	for (size_t i = 0; i < q->n_ranks; i++) {
		struct loaded row = {name, first->device, i ? more[i - 1] : first->result};

		(void)snprintf(name, sizeof(name), "%s-tp%u", q->name, q->ranks[i]);
		if (cli->format.json) {
			json_open(&json, NULL, '{');
			column_json_all(columns, &row, &json);
			json_close(&json, '}');
		} else if (!q->quiet) {
			print_result(cli, &row);
		}
	}
	if (cli->format.json) {
		json_close(&json, ']');
		json_close(&json, '}');
	}
}

/* Exit status of a buffer that has the content; -1: it has not. */
static int load_is_done(struct cli *cli, const struct request *q,
			const struct weightd_load_options *options)
{
	uint64_t version;
	int r = q->if_needed ? weightd_load_needed(cli->w, q->name, q->paths[0], options, &version)
			     : 1;

	if (r < 0)
		return cli_fail(cli, r);
	if (r > 0)
		return -1;
	if (cli->format.json)
		return server_print_version(cli, q->name, version);
	if (!q->quiet)
		(void)printf("%s@%" PRIu64 " on %s has these tensors and files already\n", q->name,
			     version, device_short(cli, cli_device(cli)));
	return 0;
}

/* The devices of the command line, as the server names them. */
static int find_destinations(struct cli *cli, const struct request *q, struct destinations *ret)
{
	ret->n = 1;
	if (q->device_list && device_resolve_list(cli, q->device_list, ret->names, &ret->n))
		return EXIT_FAILED;
	if (q->device_list)
		cli->device = ret->names[0];
	else
		ret->names[0] = cli_device(cli);
	return 0;
}

static int load_buffer(struct cli *cli, const struct request *q,
		       const struct weightd_load_options *given)
{
	struct weightd_load_options options = *given;
	struct weightd_create_options create = *given->create;
	struct destinations to = {0};
	struct loaded loaded = {
		.name = q->name,
		.result = {.size = sizeof(loaded.result)},
	};
	cleanup(freep) struct weightd_load_result *of_ranks = NULL;
	struct progress progress;
	int r;

	if (server_connect(cli) || find_destinations(cli, q, &to))
		return EXIT_FAILED;
	of_ranks = calloc(options.n_tp_more_ranks + 1, sizeof(*of_ranks));
	if (!of_ranks)
		cli_out_of_memory();
	for (size_t i = 0; i < options.n_tp_more_ranks; i++)
		of_ranks[i].size = sizeof(*of_ranks);
	options.ret_tp_results = of_ranks;
	create.device = cli->device; /* resolved now */
	create.owner = cli->owner;
	options.create = &create;
	options.more_devices = to.names + 1;
	options.n_more_devices = to.n - 1;
	options.ret_more_versions = to.versions + 1;
	loaded.device = cli_device(cli);
	options.progress = load_progress;
	options.userdata = &progress;
	options.note = load_note;
	r = load_is_done(cli, q, &options);
	if (r >= 0)
		return r;
	progress_init(&progress, q->name, q->quiet);
	load_catch(&progress, options.timeout_ms);
	r = weightd_load(cli->w, q->name, (const char *const *)q->paths, (size_t)q->n_paths,
			 &options, &loaded.result);
	stopping_settle();
	progress_finish(&progress);
	if (r < 0)
		return load_fail(cli, r);
	to.versions[0] = loaded.result.version;
	if (!q->quiet)
		print_ring_error(&loaded);
	if (q->n_ranks > 1)
		print_ranks(cli, q, &loaded, of_ranks);
	else if (cli->format.json)
		print_json(&loaded, &to);
	else if (!q->quiet)
		print_lines(cli, &loaded, &to);
	return 0;
}

/* The device is that of the command line, as the server gives it its name. */
static int load_dry(struct cli *cli, const struct request *q,
		    const struct weightd_load_options *given)
{
	struct weightd_load_options options = *given;
	struct weightd_create_options create = *given->create;

	create.device = cli->device;
	options.create = &create;
	options.note = load_note;
	return load_plan_print(cli, q->name, (const char *const *)q->paths, (size_t)q->n_paths,
			       &options);
}

/* 0 would be the library's word for "not given". */
static uint32_t option_u32(const struct cli *cli, const char *name, int base, uint32_t max)
{
	return (uint32_t)cli_number(cli, name, optarg, base, 1, max);
}

struct option_word {
	const char *name; /* NULL ends a list */
	int value;
};

static int option_word(const struct cli *cli, const struct option_word *words, const char *wanted)
{
	for (size_t i = 0; words[i].name; i++)
		if (!strcmp(words[i].name, optarg))
			return words[i].value;
	cli_usage(cli, "%s, not '%s'", wanted, optarg);
}

static const struct option_word policies[] = {
	{"wait", WEIGHTD_WAIT}, {"evict", WEIGHTD_EVICT}, {"kill", WEIGHTD_KILL}, {}};
static const struct option_word reads[] = {{"auto", WEIGHTD_READ_AUTO},
					   {"direct", WEIGHTD_READ_DIRECT},
					   {"buffered", WEIGHTD_READ_BUFFERED},
					   {}};
static const struct option_word caches[] = {{"keep", WEIGHTD_CACHE_KEEP},
					    {"drop", WEIGHTD_CACHE_DROP},
					    {}};
static const struct option_word verifies[] = {{"none", WEIGHTD_VERIFY_NONE},
					      {"xxh3", WEIGHTD_VERIFY_XXH3},
					      {"sha256", WEIGHTD_VERIFY_SHA256},
					      {}};

static enum weightd_handle option_handle(const struct cli *cli)
{
	if (!strcmp(optarg, "vmm"))
		return WEIGHTD_HANDLE_VMM;
	if (!strcmp(optarg, "ipc"))
		return WEIGHTD_HANDLE_IPC;
	cli_usage(cli, "--handle wants vmm or ipc, not '%s'", optarg);
}

/* 0 would be the library's word for "not given". */
static int option_pause_timeout(const struct cli *cli)
{
	int ms;

	if (!strcmp(optarg, "forever"))
		return -1;
	ms = cli_seconds(cli, "--pause-timeout", optarg);
	return ms ? ms : 1;
}

/* 0 would be the library's word for "none". */
static unsigned option_timeout(const struct cli *cli)
{
	int ms = cli_seconds(cli, "--timeout", optarg);

	return ms ? (unsigned)ms : 1;
}

/* Options for a new buffer, and the combinations that are refused. */
static void option_kind(const struct cli *cli, int option, struct weightd_create_options *create)
{
	create->exclusive |= option == OPTION_EXCLUSIVE;
	create->reusable |= option == OPTION_REUSABLE;
	create->replace |= option == OPTION_REPLACE;
	if (create->exclusive + create->reusable + create->replace > 1)
		cli_usage(cli, "of --exclusive, --reusable and --replace only one makes sense");
}

static enum weightd_dtype option_dtype(const struct cli *cli)
{
	static const struct {
		const char *name;
		enum weightd_dtype dtype;
	} dtypes[] = {{"bf16", WEIGHTD_BF16}, {"f16", WEIGHTD_F16}, {"f32", WEIGHTD_F32}};

	for (size_t i = 0; i < sizeof(dtypes) / sizeof(*dtypes); i++)
		if (!strcasecmp(dtypes[i].name, optarg))
			return dtypes[i].dtype;
	cli_usage(cli, "--dtype wants bf16, f16 or f32, not '%s'", optarg);
}

static unsigned *all_ranks(unsigned world)
{
	unsigned *ranks = calloc(world, sizeof(*ranks));

	if (!ranks)
		cli_out_of_memory();
	for (unsigned i = 0; i < world; i++)
		ranks[i] = i;
	return ranks;
}

/* RANK, RANK,RANK... or all, of a world. The library knows which ranks there are. */
static void option_tp(const struct cli *cli, struct request *q, struct weightd_load_options *options)
{
	char *slash = strchr(optarg, '/'), *rest;
	size_t max = 1;

	if (!slash)
		cli_usage(cli, "--tp wants RANK/WORLD, such as 0/2, 0,1/4 or all/4, not '%s'",
			  optarg);
	*slash = '\0';
	options->tp_world = (unsigned)cli_number(cli, "--tp", slash + 1, 10, 1, RANKS_MAX);
	for (const char *c = optarg; *c; c++)
		max += *c == ',';
	free(q->ranks);
	if (!strcmp(optarg, "all")) {
		q->ranks = all_ranks(options->tp_world);
		q->n_ranks = options->tp_world;
		return;
	}
	q->ranks = calloc(max, sizeof(*q->ranks));
	if (!q->ranks)
		cli_out_of_memory();
	q->n_ranks = 0;
	for (char *word = strtok_r(optarg, ",", &rest); word; word = strtok_r(NULL, ",", &rest))
		q->ranks[q->n_ranks++] = (unsigned)cli_number(cli, "--tp", word, 10, 0, UINT32_MAX);
	if (q->n_ranks == 0)
		cli_usage(cli, "--tp wants a rank in front of the slash");
}

static const char *option_attribute(const struct cli *cli)
{
	if (!strchr(optarg, '=') || optarg[0] == '=')
		cli_usage(cli, "--attribute wants KEY=VALUE, not '%s'", optarg);
	return optarg;
}

/* True for an option that a version of another node may have, too. */
static bool is_of_all_sources(int option)
{
	return option == OPTION_IF_NEEDED || option == OPTION_DRY_RUN || option == OPTION_TIMEOUT ||
	       option == 'q';
}

static const char *long_name(const struct option *longs, int option)
{
	while (longs->val != option)
		longs++;
	return longs->name;
}

/* The path among those of the command line that names a node; NULL: none does. */
static const char *node_path(const struct request *q)
{
	for (int i = 0; i < q->n_paths; i++)
		if (load_node_is(q->paths[i]))
			return q->paths[i];
	return NULL;
}

static int load_from_node(const struct cli *cli, const struct request *q, const char *path,
			  unsigned timeout_ms)
{
	const struct load_node_options options = {.is_dry = q->dry_run,
						  .quiet = q->quiet,
						  .timeout_ms = timeout_ms};

	if (q->n_paths > 1)
		cli_usage(cli, "'%s' is a whole version; give no other path with it", path);
	if (q->for_files || cli->device || cli->owner)
		load_node_refuse_option(cli, q->for_files  ? q->for_files
					     : cli->device ? "device"
							   : "owner");
	return load_node(cli, q->name, path, &options);
}

static int load_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		{"mode", required_argument, NULL, OPTION_MODE},
		{"keep", required_argument, NULL, OPTION_KEEP},
		{"threads", required_argument, NULL, OPTION_THREADS},
		{"new-layout", no_argument, NULL, OPTION_NEW_LAYOUT},
		{"exclusive", no_argument, NULL, OPTION_EXCLUSIVE},
		{"reusable", no_argument, NULL, OPTION_REUSABLE},
		{"replace", no_argument, NULL, OPTION_REPLACE},
		{"policy", required_argument, NULL, OPTION_POLICY},
		{"pause-timeout", required_argument, NULL, OPTION_PAUSE_TIMEOUT},
		{"handle", required_argument, NULL, OPTION_HANDLE},
		{"no-files", no_argument, NULL, OPTION_NO_FILES},
		{"attribute", required_argument, NULL, OPTION_ATTRIBUTE},
		{"include", required_argument, NULL, OPTION_INCLUDE},
		{"exclude", required_argument, NULL, OPTION_EXCLUDE},
		{"dtype", required_argument, NULL, OPTION_DTYPE},
		{"tp", required_argument, NULL, OPTION_TP},
		{"tp-rules", required_argument, NULL, OPTION_TP_RULES},
		{"if-needed", no_argument, NULL, OPTION_IF_NEEDED},
		{"dry-run", no_argument, NULL, OPTION_DRY_RUN},
		{"read", required_argument, NULL, OPTION_READ},
		{"cache", required_argument, NULL, OPTION_CACHE},
		{"verify", required_argument, NULL, OPTION_VERIFY},
		{"timeout", required_argument, NULL, OPTION_TIMEOUT},
		{"max-rate", required_argument, NULL, OPTION_MAX_RATE},
		{"share", no_argument, NULL, OPTION_SHARE},
		{"numa", required_argument, NULL, OPTION_NUMA},
		{"quiet", no_argument, NULL, 'q'},
		OPTIONS_DEVICE,
		OPTIONS_OWNER,
		OPTIONS_JSON,
		OPTIONS_AGENT,
		OPTIONS_COMMON,
		{},
	};
	struct weightd_create_options create = {.size = sizeof(create)};
	struct weightd_load_options options = {
		.size = sizeof(options),
		.create = &create,
	};
	/* Each argument of an option is one of argv: there are fewer of them. */
	const char **texts = calloc(3 * ((size_t)argc + 1), sizeof(*texts));
	const char **attributes = texts, **include = texts + argc + 1;
	const char **exclude = include + argc + 1;
	struct request q = {0};
	const char *node;
	int option, r;

	if (!texts)
		cli_out_of_memory();
	options.attributes = attributes;
	options.include = include;
	options.exclude = exclude;
	while ((option = cli_option(cli, argc, argv, LETTERS_JSON "q", longs)) >= 0) {
		if (!q.for_files && !is_of_all_sources(option))
			q.for_files = long_name(longs, option);
		switch (option) {
		case OPTION_MODE:
			create.mode = option_u32(cli, "--mode", 8, 0777);
			break;
		case OPTION_KEEP:
			create.keep = option_u32(cli, "--keep", 10, UINT32_MAX);
			break;
		case OPTION_THREADS:
			options.n_threads = option_u32(cli, "--threads", 10, 64);
			break;
		case OPTION_NEW_LAYOUT:
			create.new_layout = true;
			break;
		case OPTION_POLICY:
			create.policy = (enum weightd_policy)option_word(
				cli, policies, "--policy wants wait, evict or kill");
			break;
		case OPTION_PAUSE_TIMEOUT:
			create.pause_timeout_ms = option_pause_timeout(cli);
			break;
		case OPTION_HANDLE:
			create.handle = option_handle(cli);
			break;
		case OPTION_NO_FILES:
			options.no_files = true;
			break;
		case OPTION_ATTRIBUTE:
			attributes[options.n_attributes++] = option_attribute(cli);
			break;
		case OPTION_INCLUDE:
			include[options.n_include++] = optarg;
			break;
		case OPTION_EXCLUDE:
			exclude[options.n_exclude++] = optarg;
			break;
		case OPTION_DTYPE:
			options.dtype = option_dtype(cli);
			break;
		case OPTION_TP:
			option_tp(cli, &q, &options);
			break;
		case OPTION_TP_RULES:
			options.tp_rules = optarg;
			break;
		case OPTION_IF_NEEDED:
			q.if_needed = true;
			break;
		case OPTION_DRY_RUN:
			q.dry_run = true;
			break;
		case OPTION_READ:
			options.read = (enum weightd_read)option_word(
				cli, reads, "--read wants auto, direct or buffered");
			break;
		case OPTION_CACHE:
			options.cache = (enum weightd_cache)option_word(
				cli, caches, "--cache wants keep or drop");
			break;
		case OPTION_VERIFY:
			options.verify = (enum weightd_verify)option_word(
				cli, verifies, "--verify wants none, xxh3 or sha256");
			break;
		case OPTION_TIMEOUT:
			options.timeout_ms = option_timeout(cli);
			break;
		case OPTION_MAX_RATE:
			options.max_rate = cli_bytes(cli, "--max-rate", optarg);
			break;
		case OPTION_SHARE:
			options.share = true;
			break;
		case OPTION_NUMA:
			create.numa = optarg;
			break;
		case 'q':
			q.quiet = true;
			break;
		default:
			option_kind(cli, option, &create);
		}
	}
	if (argc - optind < 2)
		cli_usage(cli, "'load' wants a name and at least one path");
	q.name = cli_name(cli, argv[optind]);
	q.paths = argv + optind + 1;
	q.n_paths = argc - optind - 1;
	node = node_path(&q);
	if (options.tp_rules && !options.tp_world)
		cli_usage(cli, "--tp-rules needs --tp RANK/WORLD");
	if (q.n_ranks > 1 && (q.if_needed || q.dry_run))
		cli_usage(cli, "--if-needed and --dry-run take one rank");
	if (q.n_ranks > 0) {
		options.tp_rank = q.ranks[0];
		options.tp_more_ranks = q.ranks + 1;
		options.n_tp_more_ranks = q.n_ranks - 1;
	}
	if (q.if_needed && q.n_paths > 1)
		cli_usage(cli, "--if-needed takes one path");
	if (q.if_needed && device_is_list(cli->device))
		cli_usage(cli, "--if-needed takes one device");
	if (q.if_needed && q.dry_run)
		cli_usage(cli, "--if-needed asks the server, and --dry-run asks none");
	if (!node && !q.dry_run && device_is_list(cli->device)) {
		q.device_list = strdup(cli->device);
		if (!q.device_list)
			cli_out_of_memory();
		cli->device = NULL;
	}
	if (node)
		r = load_from_node(cli, &q, node, options.timeout_ms);
	else
		r = q.dry_run ? load_dry(cli, &q, &options) : load_buffer(cli, &q, &options);
	free(q.device_list);
	free(q.ranks);
	free(texts);
	return r;
}

const struct verb verb_load = {
	.name = "load",
	.args = "NAME PATH...",
	.summary = "Load safetensors or GGUF as the next version of a buffer",
	.options =
		"     --mode MODE        permissions of a new buffer, octal (0640)\n"
		"     --keep N           versions to keep, the newest included (2 at first)\n"
		"     --threads N        reading threads (one a core, 4 at most, 8 to a GPU)\n"
		"     --new-layout       keep the order of the files, and allow other tensors\n"
		"     --exclusive        new buffer: updated in place, if two do not fit\n"
		"     --reusable         new buffer: its memory is used again, not sealed\n"
		"     --replace          free the current version first; readers release it\n"
		"     --policy POLICY    for readers that do not pause: wait (and fail), "
		"evict\n"
		"                        or kill\n"
		"     --pause-timeout SECONDS\n"
		"                        time for readers to pause, or 'forever' (10)\n"
		"     --handle HANDLE    new buffer on a GPU: vmm, or ipc for consumers that "
		"can\n"
		"                        open a cudaIpcMemHandle_t only\n"
		"     --no-files         load the weights of a directory without its other files\n"
		"     --attribute KEY=VALUE\n"
		"                        an attribute of the version; may be given again\n"
		"     --include PATTERN  load only tensors whose name matches; may be given again\n"
		"     --exclude PATTERN  leave out tensors whose name matches; may be given again\n"
		"     --dtype DTYPE      convert tensors of floats to bf16, f16 or f32\n"
		"     --tp RANK/WORLD    load the part of a rank of tensor parallelism; 0,1/4 and\n"
		"                        all/4: several, each as NAME-tpRANK\n"
		"     --tp-rules RULES   for --tp: a type of model, or a file (by config.json)\n"
		"     --if-needed        load nothing if the version has these tensors and files\n"
		"     --dry-run          print files, ranges and places, and load nothing\n"
		"     --read WAY         auto (past the page cache where the files are not in\n"
		"                        it), direct or buffered\n"
		"     --cache EFFECT     keep what is read in the page cache, or drop what was\n"
		"                        not there before\n"
		"     --verify HOW       read again and compare (xxh3), or compare with\n"
		"                        SHA256SUMS or Hugging Face blobs (sha256); else none\n"
		"     --timeout SECONDS  give up after that time, with exit code 1\n"
		"     --max-rate BYTES   bytes a second to read from the files, as in 500M\n"
		"     --share            have one copy in memory with a version of the same bytes\n"
		"     --numa NODES       memory on these NUMA nodes (0,2-3), preferred:NODES,\n"
		"                        interleave[:NODES], local or default (as numactl has it)\n"
		" -q, --quiet            no progress and no closing line\n" HELP_JSON
		"     --device DEVICE    host or cuda:0 (host); several GPUs as cuda:0,cuda:1 or\n"
		"                        cuda:all\n"
		"     --owner USER       publish in a buffer that belongs to another user\n"
		"     --sync-socket PATH for weightd://NODE/NAME: socket of weightd-sync\n",
	.run = load_run,
};

/*
 * weightctl save: a version into a directory.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>

#include "libclient/weightctl/cli.h"
#include "libclient/weightctl/device.h"
#include "libclient/weightctl/output/column.h"
#include "libclient/weightctl/output/progress.h"
#include "libclient/weightctl/output/size.h"
#include "libclient/weightctl/server.h"
#include "libclient/weightctl/stopping.h"
#include "libclient/weightctl/verb.h"

enum {
	OPTION_SHARD_SIZE = OPTION_OWN,
	OPTION_NO_FILES,
};

struct saved {
	const char *name;
	const char *device;
	const char *directory;
	uint64_t version;
	struct weightd_save_result result;
};

#define RESULT(member) offsetof(struct saved, result.member)

static const struct column columns[] = {
	COLUMN("NAME", COLUMN_TEXT, offsetof(struct saved, name)),
	COLUMN("DEVICE", COLUMN_TEXT, offsetof(struct saved, device)),
	COLUMN("VERSION", COLUMN_U64, offsetof(struct saved, version)),
	COLUMN("DIRECTORY", COLUMN_TEXT, offsetof(struct saved, directory)),
	COLUMN("TENSORS", COLUMN_U64, RESULT(n_tensors)),
	COLUMN("FILES", COLUMN_U64, RESULT(n_files)),
	COLUMN("SIZE", COLUMN_SIZE, RESULT(n_bytes)),
	COLUMN("ELAPSED", COLUMN_DURATION, RESULT(elapsed_ns)),
	{},
};

static int save_progress(void *userdata, const char *phase, uint64_t done, uint64_t total)
{
	progress_update(userdata, phase, done, total);
	return stopping_signal();
}

static void save_print(struct cli *cli, const struct saved *s)
{
	char size[SIZE_TEXT_MAX], time[SIZE_TEXT_MAX], rate[SIZE_TEXT_MAX];
	const struct weightd_save_result *r = &s->result;

	(void)printf("%s@%" PRIu64 " on %s: %" PRIu64 " file%s, %s in %s (%s)\n", s->name,
		     s->version, device_short(cli, s->device), r->n_files,
		     r->n_files == 1 ? "" : "s", size_text(size, r->n_bytes),
		     size_duration(time, r->elapsed_ns), size_rate(rate, r->n_bytes, r->elapsed_ns));
}

static int save_fail(const struct cli *cli, int r)
{
	if (r == -ECANCELED && stopping_signal()) {
		(void)cli_error("interrupted; nothing was saved");
		return EXIT_SIGNAL + stopping_signal();
	}
	return cli_fail(cli, r);
}

static int save_buffer(struct cli *cli, const struct target *target, const char *directory,
		       const struct weightd_save_options *given, bool quiet)
{
	cleanup(server_detachp) struct weightd_buffer *b = NULL;
	struct weightd_save_options options = *given;
	struct saved saved = {
		.name = target->name,
		.directory = directory,
		.result = {.size = sizeof(saved.result)},
	};
	struct progress progress;
	int r;

	if (server_connect(cli) || server_attach(cli, target, &b))
		return EXIT_FAILED;
	saved.device = cli_device(cli);
	saved.version = weightd_buffer_version(b);
	options.progress = save_progress;
	options.userdata = &progress;
	progress_init(&progress, target->name, quiet);
	stopping_catch(NULL, 0);
	(void)signal(SIGXFSZ, SIG_IGN); /* a file larger than its limit fails instead */
	r = weightd_save(b, directory, &options, &saved.result);
	progress_finish(&progress);
	if (r < 0)
		return save_fail(cli, r);
	if (cli->format.json)
		column_json_object(columns, &saved);
	else if (!quiet)
		save_print(cli, &saved);
	return 0;
}

static int save_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		{"shard-size", required_argument, NULL, OPTION_SHARD_SIZE},
		{"force", no_argument, NULL, 'f'},
		{"no-files", no_argument, NULL, OPTION_NO_FILES},
		{"quiet", no_argument, NULL, 'q'},
		OPTIONS_DEVICE,
		OPTIONS_OWNER,
		OPTIONS_JSON,
		OPTIONS_COMMON,
		{},
	};
	struct weightd_save_options options = {.size = sizeof(options)};
	struct target target;
	bool quiet = false;
	int option;

	while ((option = cli_option(cli, argc, argv, LETTERS_JSON "fq", longs)) >= 0) {
		switch (option) {
		case OPTION_SHARD_SIZE:
			options.shard_size = cli_bytes(cli, "--shard-size", optarg);
			if (options.shard_size == 0)
				cli_usage(cli, "--shard-size wants a size above 0");
			break;
		case OPTION_NO_FILES:
			options.no_files = true;
			break;
		case 'f':
			options.replace = true;
			break;
		default:
			quiet = true;
		}
	}
	if (argc - optind != 2)
		cli_usage(cli, "'save' wants the name of a buffer and a directory");
	target = cli_target(cli, argv[optind]);
	return save_buffer(cli, &target, argv[optind + 1], &options, quiet);
}

const struct verb verb_save = {
	.name = "save",
	.args = "NAME[@VERSION] DIR",
	.summary = "Write a version to a directory, as safetensors files",
	.options = "     --shard-size SIZE  most bytes of a weights file, as in 500M (5G)\n"
		   " -f, --force            replace a directory that has weights\n"
		   "     --no-files         the weights alone\n"
		   " -q, --quiet            no progress and no closing line\n" HELP_JSON HELP_DEVICE
			   HELP_OWNER,
	.run = save_run,
};

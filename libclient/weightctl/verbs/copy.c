/*
 * weightctl copy: a version to another device, or to another name.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "libclient/weightctl/cli.h"
#include "libclient/weightctl/device.h"
#include "libclient/weightctl/output/column.h"
#include "libclient/weightctl/output/progress.h"
#include "libclient/weightctl/output/size.h"
#include "libclient/weightctl/server.h"
#include "libclient/weightctl/stopping.h"
#include "libclient/weightctl/verb.h"

enum {
	OPTION_TO = OPTION_OWN,
	OPTION_NAME,
	OPTION_MODE,
	OPTION_NO_FILES,
};

/* Words of the command line that are not options of the library. */
struct request {
	struct target target;
	char to[WEIGHTD_DEVICE_MAX + 1]; /* the device as it was given; "": that of the source */
	const char *name; /* of the copy */
	bool quiet;
};

struct copied {
	const char *name;
	const char *device;
	const char *source;
	const char *source_device;
	uint64_t source_version;
	struct weightd_copy_result result;
};

#define RESULT(member) offsetof(struct copied, result.member)

static const struct column columns[] = {
	COLUMN("NAME", COLUMN_TEXT, offsetof(struct copied, name)),
	COLUMN("DEVICE", COLUMN_TEXT, offsetof(struct copied, device)),
	COLUMN("VERSION", COLUMN_U64, RESULT(version)),
	COLUMN("SOURCE", COLUMN_TEXT, offsetof(struct copied, source)),
	COLUMN("SOURCE_DEVICE", COLUMN_TEXT, offsetof(struct copied, source_device)),
	COLUMN("SOURCE_VERSION", COLUMN_U64, offsetof(struct copied, source_version)),
	COLUMN("TENSORS", COLUMN_U64, RESULT(n_tensors)),
	COLUMN("SIZE", COLUMN_SIZE, RESULT(n_bytes)),
	COLUMN("ELAPSED", COLUMN_DURATION, RESULT(elapsed_ns)),
	COLUMN("DIGEST", COLUMN_DIGEST, RESULT(digest)),
	{},
};

static int copy_progress(void *userdata, const char *phase, uint64_t done, uint64_t total)
{
	progress_update(userdata, phase, done, total);
	return stopping_signal();
}

static void copy_print(struct cli *cli, const struct copied *c)
{
	char size[SIZE_TEXT_MAX], time[SIZE_TEXT_MAX], rate[SIZE_TEXT_MAX];
	const struct weightd_copy_result *r = &c->result;

	(void)printf("%s@%" PRIu64 " on %s: %s@%" PRIu64 " of %s, %s in %s (%s)\n", c->name,
		     r->version, device_short(cli, c->device), c->source, c->source_version,
		     device_short(cli, c->source_device), size_text(size, r->n_bytes),
		     size_duration(time, r->elapsed_ns), size_rate(rate, r->n_bytes, r->elapsed_ns));
}

static int copy_fail(const struct cli *cli, int r)
{
	if (r == -ECANCELED && stopping_signal()) {
		(void)cli_error("interrupted; nothing was published");
		return EXIT_SIGNAL + stopping_signal();
	}
	return cli_fail(cli, r);
}

static int copy_buffer(struct cli *cli, struct request *q, const struct weightd_copy_options *given)
{
	cleanup(server_detachp) struct weightd_buffer *b = NULL;
	struct weightd_copy_options options = *given;
	struct weightd_create_options create = *given->create;
	struct copied copied = {
		.name = q->name,
		.source = q->target.name,
		.result = {.size = sizeof(copied.result)},
	};
	struct progress progress;
	int r;

	if (server_connect(cli) || server_attach(cli, &q->target, &b))
		return EXIT_FAILED;
	create.device = cli_device(cli);
	if (q->to[0] && device_name_of(cli, q->to, &create.device))
		return EXIT_FAILED;
	copied.device = create.device;
	copied.source_device = cli_device(cli);
	copied.source_version = weightd_buffer_version(b);
	options.create = &create;
	options.progress = copy_progress;
	options.userdata = &progress;
	progress_init(&progress, q->name, q->quiet);
	stopping_catch(NULL, 0);
	r = weightd_copy(b, q->name, &options, &copied.result);
	progress_finish(&progress);
	if (r < 0)
		return copy_fail(cli, r);
	if (cli->format.json)
		column_json_object(columns, &copied);
	else if (!q->quiet)
		copy_print(cli, &copied);
	return 0;
}

static int copy_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		{"to", required_argument, NULL, OPTION_TO},
		{"name", required_argument, NULL, OPTION_NAME},
		{"mode", required_argument, NULL, OPTION_MODE},
		{"no-files", no_argument, NULL, OPTION_NO_FILES},
		{"quiet", no_argument, NULL, 'q'},
		OPTIONS_DEVICE,
		OPTIONS_OWNER,
		OPTIONS_JSON,
		OPTIONS_COMMON,
		{},
	};
	struct weightd_create_options create = {.size = sizeof(create)};
	struct weightd_copy_options options = {.size = sizeof(options), .create = &create};
	struct request q = {0};
	int option;

	while ((option = cli_option(cli, argc, argv, LETTERS_JSON "q", longs)) >= 0) {
		switch (option) {
		case OPTION_TO:
			if (!optarg[0] || strlen(optarg) >= sizeof(q.to))
				cli_usage(cli, "--to wants a device, not '%s'", optarg);
			(void)strcpy(q.to, optarg);
			break;
		case OPTION_NAME:
			q.name = cli_name(cli, optarg);
			break;
		case OPTION_MODE:
			create.mode = (uint32_t)cli_number(cli, "--mode", optarg, 8, 1, 0777);
			break;
		case OPTION_NO_FILES:
			options.no_files = true;
			break;
		default:
			q.quiet = true;
		}
	}
	if (argc - optind != 1)
		cli_usage(cli, "'copy' wants the name of a buffer");
	if (!q.to[0] && !q.name)
		cli_usage(cli, "'copy' wants a device to copy to (--to), or another name (--name)");
	q.target = cli_target(cli, argv[optind]);
	if (!q.name)
		q.name = q.target.name;
	return copy_buffer(cli, &q, &options);
}

const struct verb verb_copy = {
	.name = "copy",
	.args = "NAME[@VERSION]",
	.summary = "Copy a version to another device, or to another name",
	.options = "     --to DEVICE        host, or cuda:0 (the device of the buffer)\n"
		   "     --name NAME        name of the copy (that of the buffer)\n"
		   "     --mode MODE        permissions of a new buffer, octal (those of the source)\n"
		   "     --no-files         leave out the files beside the weights\n"
		   " -q, --quiet            no progress and no closing line\n" HELP_JSON HELP_DEVICE
			   HELP_OWNER,
	.run = copy_run,
};

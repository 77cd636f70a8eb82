/*
 * weightctl trace merge: recordings of several nodes on one timeline.
 *
 * All of them are read before anything is written: a file that is there stays as it is where one is broken.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "libclient/weightctl/control/recording.h"
#include "libclient/weightctl/output/atomic_file.h"
#include "libclient/weightctl/output/trace_arrow.h"
#include "libclient/weightctl/output/trace_event_json.h"
#include "libclient/weightctl/verb.h"

enum option_of_merge {
	OPTION_FORMAT = OPTION_OWN,
	OPTION_OUTPUT,
};

struct merge {
	struct recording *recordings;
	size_t n;
	const char *path; /* NULL: standard output */
	struct trace_events timeline;
	struct trace_arrows arrows;
};

static void merge_add(void *context, json_t *packet)
{
	struct merge *m = context;

	trace_arrows_add(&m->arrows, packet);
	trace_events_add(&m->timeline, packet);
}

static void trace_merge_note(void *context, const json_t *row, const struct trace_slice *slice)
{
	trace_arrows_note(context, row, slice);
}

static int open_all(struct merge *m, char *const paths[])
{
	for (size_t i = 0; i < m->n; i++)
		if (recording_open(paths[i], &m->recordings[i]))
			return EXIT_FAILED;
	for (size_t i = 0; i < m->n; i++)
		for (size_t k = 0; k < i; k++)
			if (!strcmp(m->recordings[i].node, m->recordings[k].node))
				return cli_error("%s and %s would both be of a node '%s'; name "
						 "each file as its node",
						 paths[k], paths[i], m->recordings[i].node);
	return 0;
}

/* Start of the timeline, since 1970. */
static int64_t origin(const struct merge *m)
{
	int64_t first_ns = INT64_MAX;

	for (size_t i = 0; i < m->n; i++)
		if (m->recordings[i].first_ns < first_ns)
			first_ns = m->recordings[i].first_ns;
	return first_ns == INT64_MAX ? 0 : first_ns;
}

static int trace_merge_draw(struct merge *m, FILE *f)
{
	int64_t origin_ns = origin(m);
	int result = 0;

	trace_arrows_init(&m->arrows);
	trace_events_begin(&m->timeline, f);
	m->timeline.note = trace_merge_note;
	m->timeline.context = &m->arrows;
	for (size_t i = 0; i < m->n && result == 0; i++) {
		struct recording *r = &m->recordings[i];

		trace_events_begin_node(&m->timeline, r->node, r->realtime_ns - origin_ns);
		m->arrows.node = r->node;
		result = recording_read(r, merge_add, m);
	}
	trace_events_end_spans(&m->timeline);
	trace_arrows_draw(&m->arrows, &m->timeline);
	trace_events_end(&m->timeline);
	if (m->arrows.n_backward && result == 0)
		(void)cli_error("%zu of the arrows would point back in time and are left out: the "
				"clocks of the nodes do not agree, or one node joined a sync near "
				"its end",
				m->arrows.n_backward);
	trace_arrows_deinit(&m->arrows);
	return result;
}

static int write_timeline(struct merge *m)
{
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);
	int result;

	if (!f)
		cli_out_of_memory();
	result = trace_merge_draw(m, f);
	if (fclose(f) == EOF)
		cli_out_of_memory();
	if (result == 0)
		result = m->path ? atomic_file_output(m->path, text) : cli_write(text, size);
	free(text);
	return result;
}

/* As when its name was forgotten, and the first recording taken for it. */
static bool is_recording(const struct merge *m)
{
	struct stat output, st;

	if (!m->path || stat(m->path, &output) < 0)
		return false;
	for (size_t i = 0; i < m->n; i++)
		if (fstat(fileno(m->recordings[i].f), &st) == 0 && st.st_dev == output.st_dev &&
		    st.st_ino == output.st_ino)
			return true;
	return false;
}

static int merge_run(struct merge *m, char *const paths[])
{
	int result;

	m->recordings = calloc(m->n, sizeof(*m->recordings));
	if (!m->recordings)
		cli_out_of_memory();
	result = open_all(m, paths);
	if (result == 0)
		result = is_recording(m) ? cli_error("%s is one of the recordings; it is not "
						     "replaced by the timeline",
						     m->path)
					 : write_timeline(m);
	for (size_t i = 0; i < m->n; i++)
		recording_deinit(&m->recordings[i]);
	free(m->recordings);
	return result;
}

static int trace_merge_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		{"format", required_argument, NULL, OPTION_FORMAT},
		{"output", required_argument, NULL, OPTION_OUTPUT},
		OPTION_HELP,
		{},
	};
	struct merge m = {};
	int option;

	while ((option = cli_option(cli, argc, argv, LETTERS_COMMON, longs)) >= 0) {
		if (option == OPTION_OUTPUT)
			m.path = optarg;
		else if (strcmp(optarg, "perfetto") != 0 && strcmp(optarg, "chrome") != 0)
			cli_usage(cli, "--format takes perfetto or chrome, not '%s'", optarg);
	}
	if (argc - optind < 1)
		cli_usage(cli, "'%s' wants the files of recordings", cli->verb->name);
	m.n = (size_t)(argc - optind);
	return merge_run(&m, argv + optind);
}

const struct verb verb_trace_merge = {
	.name = "trace merge",
	.args = "NODE.jsonl...",
	.summary = "Merge recordings of several nodes into one timeline",
	.options = "     --format FORMAT    perfetto or chrome, which are one (perfetto)\n"
		   "     --output FILE      replace this file, whole, instead of printing\n",
	.peer = PEER_NONE,
	.run = trace_merge_run,
};

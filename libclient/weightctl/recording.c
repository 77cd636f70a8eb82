#include "libclient/weightctl/recording.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/weightctl/agent.h"

#define LINE_SIZE (1 << 20) /* far above what weightd-trace says at once */

static int read_lines(FILE *f, const char *path, recording_fn fn, void *context)
{
	cleanup(cli_freep) char *line = malloc(LINE_SIZE);

	if (!line)
		cli_out_of_memory();
	for (unsigned long n = 1; fgets(line, LINE_SIZE, f); n++) {
		bool is_whole = strchr(line, '\n');
		cleanup(agent_decrefp)
			json_t *packet = is_whole ? json_loads(line, JSON_REJECT_DUPLICATES, NULL)
						  : NULL;

		if (!agent_text(packet, "kind"))
			return cli_error(
				"line %lu of %s is none that 'weightctl trace record' writes%s", n,
				path, is_whole ? "" : ": it has no end");
		if (fn(packet, context))
			return EXIT_FAILED;
	}
	return ferror(f) ? cli_error("cannot read %s: %s", path, strerror(errno)) : 0;
}

int recording_read(const char *path, recording_fn fn, void *context)
{
	FILE *f = strcmp(path, "-") ? fopen(path, "re") : stdin;
	int r;

	if (!f)
		return cli_error("cannot read %s: %s", path, strerror(errno));
	r = read_lines(f, path, fn, context);
	if (f != stdin)
		(void)fclose(f);
	return r;
}

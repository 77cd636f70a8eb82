#include "libclient/weightctl/recording.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/weightctl/agent.h"

#define LINE_MAX_SIZE (1 << 20) /* far above what weightd-trace says at once */

static int read_lines(FILE *f, const char *path, recording_fn fn, void *context)
{
	cleanup(cli_freep) char *line = NULL;
	size_t size = 0;
	ssize_t length;

	for (unsigned long n = 1; (length = getline(&line, &size, f)) >= 0; n++) {
		cleanup(agent_decrefp) json_t *packet = NULL;

		if (length < LINE_MAX_SIZE && line[length - 1] == '\n')
			packet = json_loadb(line, (size_t)length, JSON_REJECT_DUPLICATES, NULL);
		if (!agent_text(packet, "kind"))
			return cli_error(
				"line %lu of %s is none that 'weightctl trace record' writes%s", n,
				path, line[length - 1] == '\n' ? "" : ": the file is cut short");
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

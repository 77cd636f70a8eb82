/*
 * A recording is read twice rather than held: it may be larger than memory. The second pass ignores lines added after
 * the first, so that a recording can be read while it grows.
 */
#include "libclient/weightctl/control/recording.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libclient/weightctl/output/cli_error.h"
#include "libclient/weightctl/output/json_field.h"
#include "libclient/weightctl/output/trace_event_json.h"

#define LINE_MAX_BYTES                                                                             \
	(1 << 20) /* weightd-trace sends 64 KiB at most, of which ASCII makes up to three times as much */
#define NODE_MAX 127 /* bytes, as of a peer's name */
#define STEP_NS 100000000 /* two clocks are not read at once; a larger step: one was set */

static int is_wrong(const struct recording *r, uint64_t line, const char *why)
{
	return cli_error("%s:%" PRIu64 ": %s", r->path, line, why);
}

/*
 * Reads up to the end of the line. Returns its size, 0 at the end of the file, or -1 (EXIT_FAILED) after printing
 * why.
 */
static long read_line(struct recording *r, uint64_t number)
{
	long n = 0;
	int c;

	while ((c = getc_unlocked(r->f)) != EOF && c != '\n') {
		if (n == LINE_MAX_BYTES)
			return -is_wrong(r, number, "no line of a recording is longer than 1 MiB");
		r->line[n++] = (char)c;
	}
	if (ferror(r->f))
		return -cli_error("cannot read %s: %s", r->path, strerror(errno));
	if (c == EOF && n > 0)
		return -is_wrong(r, number, "the line is cut off; was the recording killed?");
	if (c == EOF)
		return 0;
	r->line[n++] = '\n';
	return n;
}

/* NULL at the end, or after printing why: *ret is 0 or EXIT_FAILED. */
static json_t *recording_next(struct recording *r, uint64_t number, int *ret)
{
	long n = read_line(r, number);
	json_error_t error;
	json_t *packet;

	*ret = n < 0 ? EXIT_FAILED : 0;
	if (n <= 0)
		return NULL;
	packet = json_loadb(r->line, (size_t)n, JSON_REJECT_DUPLICATES, &error);
	if (json_is_object(packet) && json_field_text(packet, "kind"))
		return packet;
	if (number == 1 && r->line[0] == '[')
		*ret = is_wrong(r, number,
				"this is a timeline, which cannot be read; record with 'weightctl "
				"trace record --format jsonl'");
	else if (packet)
		*ret = is_wrong(r, number, "this is not an object with a 'kind'");
	else
		*ret = cli_error("%s:%" PRIu64 ": this is not JSON: %s", r->path, number,
				 error.text);
	json_decref(packet);
	return NULL;
}

struct check {
	struct recording *r;
	uint64_t line;
	uint64_t first_ns;
	bool has_clock;
	int64_t first_clock;
};

static int check_clock(struct check *c, const json_t *packet)
{
	uint64_t monotonic = json_field_number(packet, "monotonic_ns", UINT64_MAX);
	uint64_t realtime = json_field_number(packet, "realtime_ns", UINT64_MAX);

	if (monotonic > realtime || realtime > TRACE_EVENTS_NS_MAX)
		return is_wrong(c->r, c->line, "'monotonic_ns' and 'realtime_ns' are not times");
	c->r->realtime_ns = (int64_t)(realtime - monotonic);
	if (!c->has_clock)
		c->first_clock = c->r->realtime_ns;
	c->has_clock = true;
	return 0;
}

static int check_packet(struct check *c, const json_t *packet)
{
	uint64_t ns;

	if (!strcmp(json_field_text(packet, "kind"), "clock"))
		return check_clock(c, packet);
	if (trace_events_first_ns(packet, &ns) < 0)
		return is_wrong(c->r, c->line, "its time in nanoseconds is missing or too large");
	if (ns < c->first_ns)
		c->first_ns = ns;
	return 0;
}

static int check_lines(struct check *c)
{
	int r;

	for (c->line = 1;; c->line++) {
		cleanup(json_decrefp) json_t *packet = recording_next(c->r, c->line, &r);

		if (!packet)
			return r;
		if (check_packet(c, packet))
			return EXIT_FAILED;
		c->r->n_lines = c->line;
	}
}

static int recording_check(struct recording *r)
{
	struct check c = {.r = r, .first_ns = UINT64_MAX};
	int64_t step;

	if (check_lines(&c))
		return EXIT_FAILED;
	if (!c.has_clock)
		return cli_error("%s has no line of the kind 'clock', without which it cannot be "
				 "put beside others; 'weightctl trace record --format jsonl' "
				 "writes one",
				 r->path);
	r->first_ns = c.first_ns == UINT64_MAX ? INT64_MAX : (int64_t)c.first_ns + r->realtime_ns;
	step = r->realtime_ns - c.first_clock;
	if (step > STEP_NS || step < -STEP_NS)
		(void)cli_error("%s: the clock was set meanwhile, by %.1f s; its last setting is "
				"used",
				r->path, (double)step / 1e9);
	return 0;
}

static int name_node(struct recording *r)
{
	const char *slash = strrchr(r->path, '/'), *name = slash ? slash + 1 : r->path;
	const char *dot = strrchr(name, '.');
	json_t *json;

	r->node = dot && dot != name ? strndup(name, (size_t)(dot - name)) : strdup(name);
	if (!r->node)
		cli_out_of_memory();
	json = json_string(r->node); /* fails unless it is UTF-8 */
	json_decref(json);
	if (!json || strlen(r->node) > NODE_MAX)
		return cli_error("%s: name it as its node, in UTF-8 and of at most %d bytes",
				 r->path, NODE_MAX);
	return 0;
}

int recording_open(const char *path, struct recording *ret)
{
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	struct stat st;

	*ret = (struct recording){.path = path, .line = malloc(LINE_MAX_BYTES + 1)};
	if (!ret->line)
		cli_out_of_memory();
	if (fd < 0 || fstat(fd, &st) < 0)
		return cli_error("cannot read %s: %s", path, strerror(errno));
	ret->f = fdopen(fd, "r");
	if (!ret->f)
		cli_out_of_memory();
	if (!S_ISREG(st.st_mode))
		return cli_error("cannot read %s: it is no regular file", path);
	return name_node(ret) ? EXIT_FAILED : recording_check(ret);
}

int recording_read(struct recording *r, void (*tell)(void *context, json_t *packet), void *context)
{
	int result = 0;

	rewind(r->f);
	for (uint64_t line = 1; line <= r->n_lines; line++) {
		cleanup(json_decrefp) json_t *packet = recording_next(r, line, &result);
		uint64_t ns;

		if (result)
			return result;
		if (!packet || trace_events_first_ns(packet, &ns) < 0 ||
		    (ns != UINT64_MAX && (int64_t)ns + r->realtime_ns < r->first_ns))
			return is_wrong(r, line, "the file was changed meanwhile");
		tell(context, packet);
	}
	return 0;
}

void recording_deinit(struct recording *r)
{
	if (r->f)
		(void)fclose(r->f);
	free(r->line);
	free(r->node);
}

/*
 * How far a load or a push is. The bar is one line, redrawn in place by one write() each, never wider than the
 * terminal and made of ASCII only: nothing to restore if the program is killed in between.
 */
#include "libclient/weightctl/output/progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "libclient/weightctl/output/clock.h"
#include "libclient/weightctl/output/escape.h"
#include "libclient/weightctl/output/size.h"

#define REDRAW_NS UINT64_C(100000000)
#define WIDTH_MAX 512
#define BAR_MIN 10 /* below that, a bar shows less than the percentage */

#define LINE_CLEAR "\r\033[K"

static const struct phase {
	const char *name;
	const char *text;
	bool bytes; /* it counts bytes, so a rate makes sense */
} phases[] = {
	{"plan", "planning", false}, /* how much there is, is still to be found */
	{"memory", "reserving", true}, /* while the server provides it */
	{"read", "reading", true}, /* and digesting */
	{"verify", "verifying", true}, /* on a GPU */
	{"write", "writing", true},
	{"publish", "publishing", false},
	{PROGRESS_SEND, "sending", true}, /* to other nodes */
	{PROGRESS_RECEIVE, "receiving", true},
};

static bool can_redraw(void)
{
	const char *term = getenv("TERM");

	return isatty(STDERR_FILENO) && term && *term && strcmp(term, "dumb") != 0;
}

void progress_init(struct progress *p, const char *name, bool quiet)
{
	*p = (struct progress){.name = name, .quiet = quiet, .bar = can_redraw()};
}

static struct phase phase_of(const char *name)
{
	for (size_t i = 0; i < sizeof(phases) / sizeof(*phases); i++)
		if (!strcmp(phases[i].name, name))
			return phases[i];
	return (struct phase){name, name, false};
}

/* Asked for at each drawing: a terminal that is resized needs no signal handler here. */
static size_t terminal_width(void)
{
	struct winsize size;

	if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) < 0 || !size.ws_col)
		return 80;
	return size.ws_col < WIDTH_MAX ? size.ws_col : WIDTH_MAX;
}

static unsigned percent(uint64_t done, uint64_t total)
{
	return (unsigned)((double)done * 100 / (double)total);
}

/* "7.6 GB of 16.1 GB, 4.9 GB/s, 0:02 left", or "7.6 GB of 16.1 GB, nothing for 0:08" */
static void progress_describe(const struct progress *p, uint64_t now, uint64_t done, uint64_t total,
			      char *buf, size_t size)
{
	char a[SIZE_TEXT_MAX], b[SIZE_TEXT_MAX];
	uint64_t ns, moved = rate_bytes(&p->rate, now, &ns),
		     stalled = rate_stalled_ns(&p->rate, now);
	char *at = buf, *end = buf + size;
	double left_ns;

	at += snprintf(at, size, "%s of %s", size_text(a, done), size_text(b, total));
	if (stalled && done < total) {
		(void)snprintf(at, (size_t)(end - at), ", nothing for %s", size_clock(b, stalled));
		return;
	}
	if (!moved || !ns)
		return;
	at += snprintf(at, (size_t)(end - at), ", %s", size_rate(a, moved, ns));
	left_ns = (double)(total - done) / (double)moved * (double)ns;
	if (left_ns > 0 && left_ns < 1e18)
		(void)snprintf(at, (size_t)(end - at), ", %s left",
			       size_clock(b, (uint64_t)left_ns + 999999999)); /* rounded up */
}

static size_t put_bar(char *line, size_t room, uint64_t done, uint64_t total)
{
	size_t inside = room - 2; /* brackets */
	size_t full = (size_t)((double)done / (double)total * (double)inside);

	line[0] = '[';
	memset(line + 1, '=', full);
	memset(line + 1 + full, ' ', inside - full);
	if (full && full < inside)
		line[full] = '>';
	line[room - 1] = ']';
	return room;
}

static void progress_draw(struct progress *p, const struct phase *phase, uint64_t now,
			  uint64_t done, uint64_t total)
{
	char head[64], tail[128] = "", line[WIDTH_MAX + sizeof(head) + sizeof(tail)];
	char out[WIDTH_MAX + sizeof(LINE_CLEAR)];
	size_t width = terminal_width();
	size_t n, n_tail;
	int n_out;

	/* room for the "^C" of an impatient user, which must not wrap */
	width = width > 3 ? width - 3 : 1;
	if (total)
		(void)snprintf(head, sizeof(head), "%-10s %3u %% ", phase->text,
			       percent(done, total));
	else
		(void)snprintf(head, sizeof(head), "%s", phase->text);
	if (total && phase->bytes)
		progress_describe(p, now, done, total, tail, sizeof(tail));
	n = (size_t)(stpcpy(line, head) - line);
	n_tail = strlen(tail);
	if (total && n + BAR_MIN + 1 + n_tail <= width) {
		n += put_bar(line + n, width - n - n_tail - 1, done, total);
		line[n++] = ' ';
	}
	(void)strcpy(line + n, tail);
	n_out = snprintf(out, sizeof(out), LINE_CLEAR "%.*s", (int)width, line);
	/* a bar that cannot be drawn is no reason to fail */
	if (n_out > 0 && write(STDERR_FILENO, out, (size_t)n_out) > 0)
		p->drawn = true;
	p->drawn_ns = now;
}

/* A line for each tenth, and one for a stall. */
static void tell_tenth(struct progress *p, const struct phase *phase, uint64_t now, uint64_t done,
		       uint64_t total)
{
	unsigned tenths = total ? percent(done, total) / 10 : 0;
	bool stalls = done < total && rate_stalled_ns(&p->rate, now), begins = stalls && !p->stalls;
	char text[128];

	p->stalls = stalls;
	if ((tenths <= p->tenths && !begins) || !phase->bytes) /* the others are short */
		return;
	p->tenths = tenths;
	progress_describe(p, now, done, total, text, sizeof(text));
	escape_text(stderr, p->name);
	(void)fprintf(stderr, ": %s %u %% (%s)\n", phase->text, tenths * 10, text);
}

static void begin_phase(struct progress *p, const char *name, uint64_t now, uint64_t done)
{
	struct phase old = phase_of(p->phase);

	/* No call is guaranteed at the end of a phase, but a new one begins only after it. */
	if (!p->bar && *p->phase) {
		rate_update(&p->rate, now, p->phase_total);
		tell_tenth(p, &old, now, p->phase_total, p->phase_total);
	}
	(void)snprintf(p->phase, sizeof(p->phase), "%s", name);
	rate_begin(&p->rate, now, done);
	p->tenths = 0;
}

void progress_update(struct progress *p, const char *phase_name, uint64_t done, uint64_t total)
{
	struct phase phase = phase_of(phase_name);
	uint64_t now = clock_now_ns();
	bool is_new = strncmp(p->phase, phase_name, sizeof(p->phase) - 1) != 0;

	if (p->quiet)
		return;
	if (done > total)
		done = total;
	if (is_new)
		begin_phase(p, phase_name, now, done);
	rate_update(&p->rate, now, done);
	p->phase_total = total;
	if (!p->bar)
		tell_tenth(p, &phase, now, done, total);
	else if (is_new || now - p->drawn_ns >= REDRAW_NS)
		progress_draw(p, &phase, now, done, total);
}

const char *progress_clear(const struct progress *p)
{
	return p->bar && !p->quiet ? LINE_CLEAR : "";
}

void progress_finish(struct progress *p)
{
	if (p->drawn)
		(void)!write(STDERR_FILENO, LINE_CLEAR, strlen(LINE_CLEAR));
	p->drawn = false;
}

/*
 * A text that is drawn again in its own place: one write() each, and nothing to restore if the program is
 * killed in between. A line that wrapped would not be counted, hence all are cut.
 */
#include "libclient/weightctl/output/redraw.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "libclient/weightctl/output/cli_error.h"
#include "libclient/weightctl/output/escape.h"
#include "libclient/weightctl/output/width.h"

bool redraw_is_possible(void)
{
	const char *term = getenv("TERM");

	return isatty(STDOUT_FILENO) && term && *term && strcmp(term, "dumb") != 0;
}

/* Asked for at each drawing: a terminal that is resized needs no signal handler here. */
static struct winsize size_now(void)
{
	struct winsize size = {};

	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) < 0 || !size.ws_col || !size.ws_row)
		size = (struct winsize){.ws_col = 80, .ws_row = 24};
	return size;
}

/* A line that is cut gets a mark, so that no part of a name is taken for a name. */
static void put_line(FILE *f, const char *s, size_t size, size_t width)
{
	if (width_of(s, size) <= width) {
		(void)fwrite(s, 1, size, f);
	} else {
		(void)fwrite(s, 1, width_fitting(s, size, width - 1), f);
		(void)fputs(escape_mark(), f);
	}
	(void)fputc('\n', f);
}

static size_t count_lines(const char *text)
{
	size_t n = 0;

	while ((text = strchr(text, '\n'))) {
		text++;
		n++;
	}
	return n;
}

int redraw_text(struct redraw *s, const char *text)
{
	const struct winsize size = size_now();
	size_t n_lines = count_lines(text), n_shown = n_lines, room = size.ws_row - 1u, n_out;
	char *out = NULL;
	FILE *f = open_memstream(&out, &n_out);
	int r;

	if (!f)
		cli_out_of_memory();
	if (n_shown > room) /* its last line is for how many are missing */
		n_shown = room ? room - 1 : 0;
	if (s->n_lines &&
	    size.ws_col !=
		    s->width) /* the terminal has wrapped them, into an unknown number of lines */
		(void)fputs("\033[H", f);
	else if (s->n_lines)
		(void)fprintf(f, "\033[%zuA", s->n_lines);
	(void)fputs("\r\033[J", f);
	for (size_t i = 0; i < n_shown; i++) {
		size_t length = strcspn(text, "\n");

		put_line(f, text, length, size.ws_col);
		text += length + 1;
	}
	if (n_shown < n_lines && room)
		(void)fprintf(f, "(and %zu more)\n", n_lines - n_shown);
	if (fclose(f) == EOF)
		cli_out_of_memory();
	s->n_lines = n_shown + (n_shown < n_lines && room);
	s->width = size.ws_col;
	r = cli_write(out, n_out);
	free(out);
	return r;
}

/*
 * A text that is drawn again in its own place: one write() each, and nothing to restore if the program is
 * killed in between. A line that wrapped would not be counted, hence all are cut.
 */
#include "libclient/weightctl/screen.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

#include "libclient/weightctl/cli.h"

bool screen_is_there(void)
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

/* Bytes of the line at `s` that fit into `width` columns. */
static size_t fitting(const char *s, size_t length, size_t width)
{
	mbstate_t state = {};
	size_t at = 0, used = 0;

	while (at < length) {
		wchar_t c;
		size_t n = mbrtowc(&c, s + at, length - at, &state);
		int columns = n && n <= length ? wcwidth(c) : -1;

		if (columns < 0 || used + (size_t)columns > width)
			break;
		used += (size_t)columns;
		at += n;
	}
	return at;
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

int screen_draw(struct screen *s, const char *text)
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
	if (s->n_lines && size.ws_col != s->width) /* who knows how many lines they are now */
		(void)fputs("\033[H", f);
	else if (s->n_lines)
		(void)fprintf(f, "\033[%zuA", s->n_lines);
	(void)fputs("\r\033[J", f);
	for (size_t i = 0; i < n_shown; i++) {
		size_t length = strcspn(text, "\n");

		(void)fwrite(text, 1, fitting(text, length, size.ws_col), f);
		(void)fputc('\n', f);
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

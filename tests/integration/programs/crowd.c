/*
 * A layout of very many tensors: built, created, published, attached and dropped again.
 *
 *	crowd SOCKET N_TENSORS
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weightd.h"

static int fail(struct weightd *w, const char *what, int r)
{
	fprintf(stderr, "%s: %s: %s\n", what, strerror(-r), weightd_error(w));
	return 1;
}

static int add_tensors(struct weightd_layout *layout, uint32_t n)
{
	uint64_t shape = 1;

	for (uint32_t i = 0; i < n; i++) {
		char name[32];
		int r;

		(void)snprintf(name, sizeof(name), "t%" PRIu32, i);
		r = weightd_layout_add(layout, name, WEIGHTD_U8, 1, &shape, WEIGHTD_PARAM, NULL);
		if (r < 0)
			return r;
	}
	return 0;
}

int main(int argc, char **argv)
{
	uint32_t n = argc == 3 ? (uint32_t)strtoul(argv[2], NULL, 10) : 0;
	struct weightd_tensor last = {.size = sizeof(last)};
	struct weightd_layout *layout;
	struct weightd_writer *writer;
	struct weightd_buffer *buffer;
	char name[32];
	struct weightd *w;
	int r;

	if (weightd_new(&w) < 0 || weightd_layout_new(64, &layout) < 0)
		return 1;
	if ((r = weightd_connect(w, argv[1])) < 0)
		return fail(w, "connect", r);
	if ((r = add_tensors(layout, n)) < 0)
		return fail(w, "layout", r);
	puts("built");
	fflush(stdout);
	if ((r = weightd_create(w, "crowd", layout, NULL, &writer)) < 0)
		return fail(w, "create", r);
	puts("created");
	if ((r = weightd_writer_publish(writer, NULL)) < 0)
		return fail(w, "publish", r);
	weightd_writer_free(writer);
	weightd_layout_free(layout);
	if ((r = weightd_attach(w, "crowd", NULL, &buffer)) < 0)
		return fail(w, "attach", r);
	(void)snprintf(name, sizeof(name), "t%" PRIu32, n - 1);
	if ((r = weightd_buffer_find(buffer, name, &last)) < 0 || last.index != n - 1)
		return fail(w, "find", r);
	weightd_detach(buffer);
	puts("read");
	if ((r = weightd_drop(w, "crowd", NULL, 0)) < 0)
		return fail(w, "drop", r);
	weightd_close(w);
	return 0;
}

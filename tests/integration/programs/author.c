/*
 * author NAME KIND BYTE: publishes a version that is full of BYTE, and prints its number
 *
 * KIND is sealed, reusable, exclusive or replace.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weightd.h>

#define SIZE 12288

static struct weightd *w;

static int fail(void)
{
	(void)fprintf(stderr, "author: %s\n", weightd_error(w));
	return 1;
}

int main(int argc, char **argv)
{
	struct weightd_create_options o = {
		.size = sizeof(o),
		.keep = 2,
		.policy = WEIGHTD_EVICT,
		.pause_timeout_ms = 1,
	};
	const uint64_t shape = SIZE;
	struct weightd_layout *layout;
	struct weightd_writer *writer;
	uint64_t version;

	if (argc != 4)
		return 2;
	o.reusable = !strcmp(argv[2], "reusable");
	o.exclusive = !strcmp(argv[2], "exclusive");
	o.replace = !strcmp(argv[2], "replace");
	if (weightd_new(&w) < 0 || weightd_layout_new(0, &layout) < 0 ||
	    weightd_layout_add(layout, "t", WEIGHTD_U8, 1, &shape, WEIGHTD_PARAM, NULL) < 0)
		return 1;
	if (weightd_connect(w, NULL) < 0 || weightd_create(w, argv[1], layout, &o, &writer) < 0)
		return fail();
	memset(weightd_writer_data(writer, NULL), atoi(argv[3]), SIZE);
	if (weightd_writer_publish(writer, &version) < 0)
		return fail();
	(void)printf("%" PRIu64 "\n", version);
	(void)fflush(stdout);
	weightd_writer_free(writer);
	weightd_close(w);
	return 0;
}

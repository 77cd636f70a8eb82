/*
 * weightctl cat: the bytes of one tensor, as they are, to standard output.
 */
#include <inttypes.h>
#include <unistd.h>

#include "libclient/weightctl/absent.h"
#include "libclient/weightctl/cli.h"
#include "libclient/weightctl/server.h"
#include "libclient/weightctl/verb.h"

#define CHUNK (16u << 20) /* bytes copied from a GPU at once */

/* The address of GPU memory cannot be dereferenced here. */
static int print_from_gpu(const struct cli *cli, struct weightd_buffer *b,
			  const struct weightd_tensor *tensor)
{
	cleanup(cli_freep) char *chunk = malloc(CHUNK);
	uint64_t n;
	int r;

	if (!chunk)
		cli_out_of_memory();
	for (uint64_t at = 0; at < tensor->n_bytes; at += n) {
		n = tensor->n_bytes - at < CHUNK ? tensor->n_bytes - at : CHUNK;
		r = weightd_buffer_read(b, tensor->offset + at, chunk, n);
		if (r < 0)
			return cli_fail(cli, r);
		if (cli_write(chunk, n))
			return EXIT_FAILED;
	}
	return 0;
}

static int cat_print(const struct cli *cli, struct weightd_buffer *b, const char *name)
{
	struct weightd_location location = {.size = sizeof(location)};
	struct weightd_tensor tensor = {.size = sizeof(tensor)};
	int r;

	r = weightd_buffer_find(b, name, &tensor);
	if (r < 0)
		return absent_tensor(b, name);
	r = weightd_buffer_location(b, &location);
	if (r < 0)
		return cli_fail(cli, r);
	if (location.memory != WEIGHTD_MEMORY_HOST)
		return print_from_gpu(cli, b, &tensor);
	return cli_write(tensor.data, tensor.n_bytes); /* straight from the shared mapping */
}

/* Bytes that can change in place may have changed during the copy; the user must learn of that. */
static int print_mutable(const struct cli *cli, struct weightd_buffer *b, const char *name)
{
	uint64_t ticket;
	int r;

	r = weightd_read_begin(b, &ticket);
	if (r < 0)
		return cli_fail(cli, r);
	r = cat_print(cli, b, name);
	if (!r && weightd_read_retry(b, ticket))
		return cli_error("'%s' was updated in place meanwhile; the output is of no single "
				 "version, read it again",
				 weightd_buffer_name(b));
	return r;
}

static int cat_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		{"force", no_argument, NULL, 'f'},
		OPTIONS_DEVICE,
		OPTIONS_COMMON,
		{},
	};
	cleanup(server_detachp) struct weightd_buffer *b = NULL;
	struct target target;
	bool force = false;

	while (cli_option(cli, argc, argv, LETTERS_COMMON "f", longs) >= 0)
		force = true;
	if (argc - optind != 2)
		cli_usage(cli, "'cat' wants the name of a buffer and that of a tensor");
	target = cli_target(cli, argv[optind]);
	if (!force && isatty(STDOUT_FILENO))
		return cli_error("raw bytes would disturb the terminal; send them to a file or a "
				 "pipe, or use --force");
	if (server_connect(cli) || server_attach(cli, &target, &b))
		return EXIT_FAILED;
	if (weightd_buffer_is_mutable(b))
		return print_mutable(cli, b, argv[optind + 1]);
	return cat_print(cli, b, argv[optind + 1]);
}

const struct verb verb_cat = {
	.name = "cat",
	.args = "NAME[@VERSION] TENSOR",
	.summary = "Write the raw bytes of a tensor to standard output",
	.options = " -f, --force            even if standard output is a terminal\n" HELP_DEVICE,
	.run = cat_run,
};

/*
 * weightctl cat: the bytes of one tensor or file, as they are, to standard output.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libclient/weightctl/absent.h"
#include "libclient/weightctl/cli.h"
#include "libclient/weightctl/output/escape.h"
#include "libclient/weightctl/server.h"
#include "libclient/weightctl/verb.h"

enum {
	OPTION_FILE = OPTION_OWN,
};

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

/* Lines and tabs stay; other control characters could disturb the terminal. */
static void print_text(const char *data, uint64_t size)
{
	while (size > 0) {
		size_t n = 0;
		char *run;

		while (n < size && data[n] && data[n] != '\n' && data[n] != '\t')
			n++;
		run = strndup(data, n);
		if (!run)
			cli_out_of_memory();
		escape_text(stdout, run);
		free(run);
		if (n < size)
			(void)fputs(data[n] == '\n' ? "\n" : data[n] ? "\t" : "\\x00", stdout);
		n += n < size;
		data += n;
		size -= n;
	}
}

/* Needs no attachment. */
static int cat_file(struct cli *cli, struct target *target, const char *path, bool force)
{
	cleanup(server_files_freep) struct weightd_files *files = NULL;
	struct weightd_file file = {.size = sizeof(file)};

	if (server_connect(cli) || server_files(cli, target, &files))
		return EXIT_FAILED;
	if (weightd_files_find(files, path, &file) < 0)
		return absent_file(target, files, path);
	if (force || !isatty(STDOUT_FILENO))
		return cli_write(file.data, file.n_bytes);
	print_text(file.data, file.n_bytes);
	return 0;
}

static int cat_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		{"force", no_argument, NULL, 'f'},
		{"file", required_argument, NULL, OPTION_FILE},
		OPTIONS_DEVICE,
		OPTIONS_OWNER,
		OPTIONS_COMMON,
		{},
	};
	cleanup(server_detachp) struct weightd_buffer *b = NULL;
	struct target target;
	const char *path = NULL;
	bool force = false;
	int option;

	while ((option = cli_option(cli, argc, argv, LETTERS_COMMON "f", longs)) >= 0) {
		if (option == OPTION_FILE)
			path = optarg;
		else
			force = true;
	}
	if (argc - optind != (path ? 1 : 2))
		cli_usage(cli, "'cat' wants the name of a buffer, and that of a tensor or --file");
	target = cli_target(cli, argv[optind]);
	if (path)
		return cat_file(cli, &target, path, force);
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
	.args = "NAME[@VERSION] [TENSOR]",
	.summary = "Write the raw bytes of a tensor or file to standard output",
	.options = "     --file PATH        a file beside the weights, instead of a tensor\n"
		   " -f, --force            raw bytes even if standard output is a terminal\n" HELP_DEVICE
			   HELP_OWNER,
	.run = cat_run,
};

/*
 * weightctl diff: two versions, or a version and files, tensor by tensor.
 *
 * Exit status as of diff(1): 0 equal, 1 different, 2 trouble.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "libclient/weightctl/cli.h"
#include "libclient/weightctl/device.h"
#include "libclient/weightctl/output/escape.h"
#include "libclient/weightctl/output/json.h"
#include "libclient/weightctl/output/size.h"
#include "libclient/weightctl/server.h"
#include "libclient/weightctl/verb.h"

enum {
	EXIT_TROUBLE = 2,
};

/* A side as the user named it. */
struct named {
	const char *arg;
	const char *path; /* NULL: a buffer */
	struct target target;
	struct weightd_buffer *buffer;
	char text[WEIGHTD_NAME_MAX + 32]; /* "m@3", for people */
};

struct printer {
	const struct named *first, *second;
	struct json *json; /* NULL: text */
	bool quiet;
};

/* --- Differences ------------------------------------------------------------------------------ */

static void print_type(const struct weightd_tensor *t)
{
	(void)printf("%s [", weightd_dtype_name(t->dtype));
	for (uint32_t i = 0; i < t->n_dims; i++)
		(void)printf("%s%" PRIu64, i ? ", " : "", t->shape[i]);
	(void)printf("]");
}

static void print_bytes(const struct weightd_difference *d)
{
	(void)printf("%" PRIu64 " of %" PRIu64 " elements differ", d->n_different, d->n_elements);
	if (d->n_unmeasured < d->n_different)
		(void)printf(", by %g at most", d->max_abs);
	if (d->n_unmeasured > 0)
		(void)printf(", %" PRIu64 " of them without a finite difference", d->n_unmeasured);
}

static void print_difference(const struct printer *p, const struct weightd_difference *d)
{
	escape_name(stdout, (d->first ? d->first : d->second)->name);
	(void)printf(": ");
	switch (d->kind) {
	case WEIGHTD_DIFF_ONLY_FIRST:
	case WEIGHTD_DIFF_ONLY_SECOND:
		(void)printf("only in ");
		escape_text(stdout, (d->first ? p->first : p->second)->text);
		break;
	case WEIGHTD_DIFF_BYTES:
		print_bytes(d);
		break;
	default:
		print_type(d->first);
		(void)printf(" and ");
		print_type(d->second);
	}
	(void)printf("\n");
}

static void json_tensor(struct json *j, const char *key, const struct weightd_tensor *t)
{
	if (!t) {
		json_put_null(j, key);
		return;
	}
	json_open(j, key, '{');
	json_put_string(j, "dtype", weightd_dtype_name(t->dtype));
	json_open(j, "shape", '[');
	for (uint32_t i = 0; i < t->n_dims; i++)
		json_put_number(j, NULL, t->shape[i]);
	json_close(j, ']');
	json_close(j, '}');
}

static void json_difference(struct json *j, const struct weightd_difference *d)
{
	json_open(j, NULL, '{');
	json_put_string(j, "name", (d->first ? d->first : d->second)->name);
	json_put_string(j, "difference", weightd_diff_name(d->kind));
	json_tensor(j, "first", d->first);
	json_tensor(j, "second", d->second);
	if (d->kind == WEIGHTD_DIFF_BYTES) {
		json_put_number(j, "elements", d->n_elements);
		json_put_number(j, "different", d->n_different);
		json_put_number(j, "unmeasured", d->n_unmeasured);
		if (d->n_unmeasured < d->n_different)
			json_put_double(j, "max_abs", d->max_abs);
		else
			json_put_null(j, "max_abs");
	}
	json_close(j, '}');
}

static int diff_print(void *userdata, const struct weightd_difference *d)
{
	const struct printer *p = userdata;

	if (p->json)
		json_difference(p->json, d);
	else if (!p->quiet)
		print_difference(p, d);
	return 0;
}

static void print_sum(const struct printer *p, const struct weightd_diff_result *r)
{
	char size[SIZE_TEXT_MAX];

	escape_text(stdout, p->first->text);
	(void)printf(" and ");
	escape_text(stdout, p->second->text);
	if (r->n_different == 0)
		(void)printf(" are equal: %" PRIu64 " tensor%s, %s\n", r->n_tensors,
			     r->n_tensors == 1 ? "" : "s", size_text(size, r->n_bytes));
	else
		(void)printf(": %" PRIu64 " of %" PRIu64 " tensors differ\n", r->n_different,
			     r->n_tensors);
}

/* --- Sides ------------------------------------------------------------------------------------ */

static bool ends_with(const char *text, const char *end)
{
	size_t n = strlen(text), m = strlen(end);

	return n > m && !strcmp(text + n - m, end);
}

/* Names of buffers may have slashes, too. */
static bool is_path(const char *arg)
{
	return *arg == '/' || *arg == '.' || ends_with(arg, ".safetensors") ||
	       ends_with(arg, ".safetensors.index.json") || ends_with(arg, ".gguf");
}

static struct named diff_name(const struct cli *cli, char *arg)
{
	struct named n = {.arg = arg};

	if (is_path(arg)) {
		n.path = arg;
		(void)snprintf(n.text, sizeof(n.text), "%s", arg);
	} else {
		n.target = cli_target(cli, arg);
	}
	return n;
}

static int diff_attach(struct cli *cli, struct named *n)
{
	if (n->path)
		return 0;
	if (server_attach(cli, &n->target, &n->buffer)) {
		if (access(n->arg, F_OK) == 0)
			(void)cli_error("there is a file or directory '%s', too: './%s' names that",
					n->arg, n->arg);
		return EXIT_TROUBLE;
	}
	(void)snprintf(n->text, sizeof(n->text), "%s@%" PRIu64, n->target.name,
		       weightd_buffer_version(n->buffer));
	return 0;
}

static void named_detach(struct named *n)
{
	weightd_detach(n->buffer);
}

static struct weightd_diff_side side_of(const struct named *n)
{
	return (struct weightd_diff_side){
		.size = sizeof(struct weightd_diff_side),
		.buffer = n->buffer,
		.path = n->path,
	};
}

static void json_side(struct json *j, const char *key, const struct named *n)
{
	json_open(j, key, '{');
	if (n->path) {
		json_put_string(j, "path", n->path);
	} else {
		json_put_string(j, "name", weightd_buffer_name(n->buffer));
		json_put_string(j, "device", weightd_buffer_device(n->buffer));
		json_put_number(j, "version", weightd_buffer_version(n->buffer));
	}
	json_close(j, '}');
}

/* --- The verb --------------------------------------------------------------------------------- */

static int diff_text(struct cli *cli, const struct printer *p)
{
	struct weightd_diff_side first = side_of(p->first), second = side_of(p->second);
	struct weightd_diff_result result = {.size = sizeof(result)};
	int r = weightd_diff(cli->w, &first, &second, diff_print, (void *)p, &result);

	if (r < 0) {
		(void)cli_fail(cli, r);
		return EXIT_TROUBLE;
	}
	if (!p->quiet)
		print_sum(p, &result);
	return r;
}

/* The document is complete after a failure, too, with null for the result. */
static int diff_json(struct cli *cli, struct printer *p)
{
	struct weightd_diff_side first = side_of(p->first), second = side_of(p->second);
	struct weightd_diff_result result = {.size = sizeof(result)};
	struct json json = {.file = stdout};
	int r;

	p->json = &json;
	json_open(&json, NULL, '{');
	json_side(&json, "first", p->first);
	json_side(&json, "second", p->second);
	json_open(&json, "differences", '[');
	r = weightd_diff(cli->w, &first, &second, diff_print, p, &result);
	json_close(&json, ']');
	if (r < 0) {
		json_put_null(&json, "equal");
	} else {
		json_put_bool(&json, "equal", r == 0);
		json_put_number(&json, "tensors", result.n_tensors);
		json_put_number(&json, "different", result.n_different);
		json_put_number(&json, "size", result.n_bytes);
	}
	json_close(&json, '}');
	if (r >= 0)
		return r;
	(void)cli_fail(cli, r);
	return EXIT_TROUBLE;
}

static int diff_sides(struct cli *cli, struct named *first, struct named *second, bool quiet)
{
	struct printer p = {.first = first, .second = second, .quiet = quiet};

	if (first->path && second->path) {
		if (weightd_new(&cli->w) < 0)
			cli_out_of_memory();
	} else if (server_connect(cli)) {
		return EXIT_TROUBLE;
	}
	if (diff_attach(cli, first) || diff_attach(cli, second))
		return EXIT_TROUBLE;
	return cli->format.json ? diff_json(cli, &p) : diff_text(cli, &p);
}

static int diff_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		{"quiet", no_argument, NULL, 'q'},
		OPTIONS_DEVICE,
		OPTIONS_OWNER,
		OPTIONS_JSON,
		OPTIONS_COMMON,
		{},
	};
	cleanup(named_detach) struct named first = {0};
	cleanup(named_detach) struct named second = {0};
	bool quiet = false;

	while (cli_option(cli, argc, argv, LETTERS_JSON "q", longs) >= 0)
		quiet = true;
	if (argc - optind != 2)
		cli_usage(cli, "'diff' wants two names of buffers or paths");
	first = diff_name(cli, argv[optind]);
	second = diff_name(cli, argv[optind + 1]);
	return diff_sides(cli, &first, &second, quiet);
}

const struct verb verb_diff = {
	.name = "diff",
	.args = "NAME[@VERSION]|PATH NAME[@VERSION]|PATH",
	.summary = "Compare versions and files, tensor by tensor",
	.options = " -q, --quiet            the exit status alone: 0 equal, 1 different, 2 trouble\n" HELP_JSON
		HELP_DEVICE HELP_OWNER,
	.run = diff_run,
};

/*
 * weightctl verify: are the bytes still those that were published?
 */
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/weightctl/cli.h"
#include "libclient/weightctl/device.h"
#include "libclient/weightctl/output/clock.h"
#include "libclient/weightctl/output/column.h"
#include "libclient/weightctl/output/size.h"
#include "libclient/weightctl/server.h"
#include "libclient/weightctl/verb.h"

/* The damaged parts of a version, in order. */
struct damages {
	struct weightd_damage *list;
	size_t n, max;
};

struct verified {
	const char *name;
	const char *device;
	uint64_t version;
	uint64_t n_bytes;
	uint64_t elapsed_ns;
	bool equal;
	uint8_t digest[WEIGHTD_DIGEST_SIZE];
};

static const struct column columns[] = {
	COLUMN("NAME", COLUMN_TEXT, offsetof(struct verified, name)),
	COLUMN("DEVICE", COLUMN_TEXT, offsetof(struct verified, device)),
	COLUMN("VERSION", COLUMN_U64, offsetof(struct verified, version)),
	COLUMN("EQUAL", COLUMN_BOOL, offsetof(struct verified, equal)),
	COLUMN("SIZE", COLUMN_SIZE, offsetof(struct verified, n_bytes)),
	COLUMN("ELAPSED", COLUMN_DURATION, offsetof(struct verified, elapsed_ns)),
	COLUMN("DIGEST", COLUMN_DIGEST, offsetof(struct verified, digest)),
	{},
};

static void verify_print(struct cli *cli, const struct verified *v)
{
	char size[SIZE_TEXT_MAX], time[SIZE_TEXT_MAX], rate[SIZE_TEXT_MAX];
	char digest[COLUMN_DIGEST_MAX];

	(void)printf("%s@%" PRIu64 " on %s: matches digest %s, %s in %s (%s)\n", v->name,
		     v->version, device_short(cli, v->device), column_digest(digest, v->digest),
		     size_text(size, v->n_bytes), size_duration(time, v->elapsed_ns),
		     size_rate(rate, v->n_bytes, v->elapsed_ns));
}

static int damages_add(void *userdata, const struct weightd_damage *damage)
{
	struct damages *d = userdata;

	if (d->n == d->max) {
		d->max = d->max ? 2 * d->max : 64;
		d->list = realloc(d->list, d->max * sizeof(*d->list));
		if (!d->list)
			cli_out_of_memory();
	}
	d->list[d->n++] = *damage;
	return 0;
}

static void damages_deinit(struct damages *d)
{
	free(d->list);
}

static const char *tensor_name(const struct weightd_buffer *b, uint32_t index)
{
	struct weightd_tensor t = {.size = sizeof(t)};

	return weightd_buffer_tensor(b, index, &t) == 0 ? t.name : "";
}

/* Tensors with bytes in damaged leaves side by side: "tensors 'a' to 'c'". */
static void damage_print_tensors(FILE *f, const struct weightd_buffer *b,
				 const struct weightd_damage *first,
				 const struct weightd_damage *last)
{
	while (first < last && first->n_tensors == 0)
		first++;
	while (last > first && last->n_tensors == 0)
		last--;
	if (first->n_tensors == 0)
		(void)fprintf(f, "between tensors");
	else if (first->first_tensor == last->last_tensor)
		(void)fprintf(f, "tensor '%s'", tensor_name(b, first->first_tensor));
	else
		(void)fprintf(f, "tensors '%s' to '%s'", tensor_name(b, first->first_tensor),
			      tensor_name(b, last->last_tensor));
}

/* Damaged leaves side by side, or the header, as one line. */
static void damage_print(const struct verified *v, const struct weightd_buffer *b,
			 const struct weightd_damage *first, const struct weightd_damage *last)
{
	cleanup(cli_freep) char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);

	if (!f)
		cli_out_of_memory();
	(void)fprintf(f, "%s@%" PRIu64 ": damaged: ", v->name, v->version);
	if (first->leaf == WEIGHTD_HEADER_LEAF) {
		(void)fprintf(f, "header, bytes 0 to %" PRIu64 " of the file", first->end);
	} else {
		(void)fprintf(f, "bytes %" PRIu64 " to %" PRIu64 ", leaf %" PRIu64, first->begin,
			      last->end, first->leaf);
		if (last > first)
			(void)fprintf(f, " to %" PRIu64, last->leaf);
		(void)fprintf(f, ", ");
		damage_print_tensors(f, b, first, last);
	}
	if (fclose(f))
		cli_out_of_memory();
	(void)cli_error("%s", text);
}

/* The closing error names the first one alone. */
static void damages_print(const struct verified *v, const struct weightd_buffer *b,
			  const struct damages *d)
{
	for (size_t i = 0, end; d->n > 1 && i < d->n; i = end) {
		for (end = i + 1; end < d->n && d->list[i].leaf != WEIGHTD_HEADER_LEAF &&
				  d->list[end].leaf == d->list[end - 1].leaf + 1;
		     end++)
			;
		damage_print(v, b, &d->list[i], &d->list[end - 1]);
	}
}

static void damages_put(const struct weightd_buffer *b, const struct damages *d, struct json *json)
{
	struct weightd_tensor t = {.size = sizeof(t)};

	json_open(json, "damage", '[');
	for (size_t i = 0; i < d->n; i++) {
		const struct weightd_damage *damage = &d->list[i];
		const bool is_header = damage->leaf == WEIGHTD_HEADER_LEAF;

		json_open(json, NULL, '{');
		json_put_string(json, "part", is_header ? "header" : "leaf");
		if (is_header)
			json_put_null(json, "leaf");
		else
			json_put_number(json, "leaf", damage->leaf);
		json_put_number(json, "begin", damage->begin);
		json_put_number(json, "end", damage->end);
		json_open(json, "tensors", '[');
		for (uint32_t k = damage->first_tensor;
		     damage->n_tensors && k <= damage->last_tensor; k++)
			if (weightd_buffer_tensor(b, k, &t) == 0 && t.n_bytes > 0 &&
			    t.tied_to == WEIGHTD_NOT_TIED)
				json_put_string(json, NULL, t.name);
		json_close(json, ']');
		json_close(json, '}');
	}
	json_close(json, ']');
}

static int verify_target(struct cli *cli, const struct target *target, struct json *json)
{
	cleanup(server_detachp) struct weightd_buffer *b = NULL;
	cleanup(damages_deinit) struct damages damages = {};
	struct verified v = {};
	const uint8_t *digest;
	uint64_t start, ticket = 0;
	int r;

	if (server_attach(cli, target, &b))
		return EXIT_FAILED;
	v.name = weightd_buffer_name(b);
	v.device = weightd_buffer_device(b);
	v.version = weightd_buffer_version(b);
	(void)weightd_buffer_data(b, &v.n_bytes);
	digest = weightd_buffer_digest(b);
	if (digest)
		memcpy(v.digest, digest, sizeof(v.digest));
	if (weightd_buffer_is_mutable(b) && (r = weightd_read_begin(b, &ticket)) < 0)
		return cli_fail(cli, r);
	start = clock_now_ns();
	r = weightd_buffer_verify_each(b, damages_add, &damages);
	v.elapsed_ns = clock_now_ns() - start;
	if (weightd_buffer_is_mutable(b) && weightd_read_retry(b, ticket))
		return cli_error("'%s' on %s was updated in place meanwhile; verify it again",
				 v.name, device_short(cli, v.device));
	v.equal = r >= 0;
	if (cli->format.json && (!r || r == -EILSEQ)) {
		json_open(json, NULL, '{');
		column_json_all(columns, &v, json);
		damages_put(b, &damages, json);
		json_close(json, '}');
	} else if (r >= 0) {
		verify_print(cli, &v);
	} else if (r == -EILSEQ) {
		damages_print(&v, b, &damages);
	}
	return r < 0 ? cli_fail(cli, r) : 0;
}

static int verify_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		OPTIONS_DEVICE, OPTIONS_OWNER, OPTIONS_JSON, OPTIONS_COMMON, {}};
	cleanup(cli_freep) struct target *targets = NULL;
	struct json json = {.file = stdout};
	size_t n_targets;
	int status = 0;

	(void)cli_option(cli, argc, argv, LETTERS_JSON, longs);
	targets = cli_targets(cli, argc, argv, &n_targets);
	if (server_connect(cli))
		return EXIT_FAILED;
	if (cli->format.json) {
		json_open(&json, NULL, '{');
		json_open(&json, "verified", '[');
	}
	for (size_t i = 0; i < n_targets; i++)
		if (verify_target(cli, &targets[i], &json))
			status = EXIT_FAILED;
	if (cli->format.json) {
		json_close(&json, ']');
		json_close(&json, '}');
	}
	return status;
}

const struct verb verb_verify = {
	.name = "verify",
	.args = "NAME[@VERSION]...",
	.summary = "Compare the digest of a version with the published one",
	.options = HELP_JSON HELP_DEVICE HELP_OWNER,
	.run = verify_run,
};

/*
 * weightctl verify: are the bytes still those that were published?
 */
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "libclient/weightctl/cli.h"
#include "libclient/weightctl/device.h"
#include "libclient/weightctl/output/clock.h"
#include "libclient/weightctl/output/column.h"
#include "libclient/weightctl/output/size.h"
#include "libclient/weightctl/server.h"
#include "libclient/weightctl/verb.h"

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

static int verify_target(struct cli *cli, const struct target *target, struct json *json)
{
	cleanup(server_detachp) struct weightd_buffer *b = NULL;
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
	r = weightd_buffer_verify(b);
	v.elapsed_ns = clock_now_ns() - start;
	if (weightd_buffer_is_mutable(b) && weightd_read_retry(b, ticket))
		return cli_error("'%s' on %s was updated in place meanwhile; verify it again",
				 v.name, device_short(cli, v.device));
	v.equal = r >= 0;
	if (cli->format.json && (!r || r == -EILSEQ)) {
		json_open(json, NULL, '{');
		column_json_all(columns, &v, json);
		json_close(json, '}');
	} else if (r >= 0) {
		verify_print(cli, &v);
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

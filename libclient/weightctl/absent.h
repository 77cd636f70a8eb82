/*
 * Errors about names that do not exist, with the nearest ones
 */
#pragma once

#include "libclient/weightctl/cli.h"

/*
 * Prints the failure `r` of a call about the buffer `name` on the requested device. If no buffer has that name, adds
 * the way out: another device, a similar name, the list. Returns EXIT_FAILED.
 */
int absent_buffer(struct cli *cli, const char *name, int r);

/* The same for a version: if the buffer exists, it has no such version. */
int absent_version(struct cli *cli, const struct target *target, int r);

/* That way alone, for a buffer on any device: "is it 'minilm'?". Valid until the next call. */
const char *absent_hint(struct cli *cli, const char *name);

/* Prints that the version has no file of that path. Returns EXIT_FAILED. */
int absent_file(const struct target *target, const struct weightd_files *files, const char *path);

/* Prints that the buffer has no tensor of that name. Returns EXIT_FAILED. */
int absent_tensor(const struct weightd_buffer *b, const char *name);

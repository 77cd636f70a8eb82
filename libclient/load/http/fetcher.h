/*
 * Fetchers: files on servers, read by ranges over HTTP
 *
 * A fetcher belongs to one load. Its files may be read by several threads at once, each over a connection of its own. A file
 * keeps the validator (ETag, or the time of its last change) of the first reply: bytes with another one are refused.
 * fetcher-curl.c or fetcher-none.c is built.
 */
#pragma once

#include <stdbool.h>

#include "libclient/connection/sentence.h"
#include "libclient/image/file.h"

#define FETCHER_LINES 16u /* connections at once that are worth their threads */

struct fetcher;

/* True: whatever is read is not needed any more. Called by each thread that reads, every 100 ms at least. */
typedef bool (*fetcher_stop_fn)(void *userdata);

/* -EOPNOTSUPP: there is no libcurl. */
int fetcher_new(struct fetcher **ret, struct sentence *s);
struct fetcher *fetcher_free(struct fetcher *f);

/* Reads of stopped fetchers fail with -ECANCELED. NULL: none is. */
void fetcher_set_stop(struct fetcher *f, fetcher_stop_fn fn, void *userdata);

/* Reads the beginning of the file. -ENOENT: the server has none there; -EINVAL: a URL that is not used. */
int fetcher_open(struct fetcher *f, const char *url, struct file *ret, struct sentence *s);

/*
 * URLs of weights
 *
 * The query of a signed URL is a secret: it is sent to its server, and is in no text that is printed or stored.
 */
#pragma once

#include <stdbool.h>

/* True for SCHEME://..., of any scheme. */
bool url_is(const char *path);

/* The URL up to its query or fragment. NULL: out of memory. */
char *url_shown(const char *url);

/* The URL of the file `name` in the folder of `url`, with the same query. `name` may have '/'. NULL: out of memory. */
char *url_sibling(const char *url, const char *name);

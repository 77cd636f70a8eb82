#include "libclient/load/http/url.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"

bool url_is(const char *path)
{
	size_t n = 0;

	if (!isalpha((unsigned char)*path))
		return false;
	while (isalnum((unsigned char)path[n]) || (path[n] && strchr("+-.", path[n])))
		n++;
	return !strncmp(path + n, "://", 3);
}

char *url_shown(const char *url)
{
	return strndup(url, strcspn(url, "?#"));
}

/* Percent-encodes all but '/' and what may stand as it is (RFC 3986, section 2.3). */
static char *path_encode(const char *path)
{
	char *encoded = malloc(3 * strlen(path) + 1), *to = encoded;

	if (!encoded)
		return NULL;
	for (; *path; path++) {
		if (isalnum((unsigned char)*path) || strchr("-._~/", *path))
			*to++ = *path;
		else
			to += sprintf(to, "%%%02X", (unsigned char)*path);
	}
	*to = '\0';
	return encoded;
}

char *url_sibling(const char *url, const char *name)
{
	size_t n_path = strcspn(url, "?#"), n_folder = n_path;
	size_t n_query = strcspn(url + n_path, "#");
	cleanup(freep) char *encoded = path_encode(name);
	char *sibling;

	while (n_folder > 0 && url[n_folder - 1] != '/')
		n_folder--;
	if (!encoded || asprintf(&sibling, "%.*s%s%.*s", (int)n_folder, url, encoded, (int)n_query,
				 url + n_path) < 0)
		return NULL;
	return sibling;
}

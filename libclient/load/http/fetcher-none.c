/* Built without libcurl: no file of a server can be read. */
#include <errno.h>
#include <stddef.h>

#include "libclient/load/http/fetcher.h"

int fetcher_new(struct fetcher **ret, struct sentence *s)
{
	(void)ret;
	return sentence_set(s, -EOPNOTSUPP,
			    "URLs cannot be loaded: this libweightd was built without libcurl; build "
			    "it where libcurl4-openssl-dev 7.85 or newer is installed");
}

struct fetcher *fetcher_free(struct fetcher *f)
{
	(void)f;
	return NULL;
}

void fetcher_set_stop(struct fetcher *f, fetcher_stop_fn fn, void *userdata)
{
	(void)f;
	(void)fn;
	(void)userdata;
}

int fetcher_open(struct fetcher *f, const char *url, struct file *ret, struct sentence *s)
{
	(void)f;
	(void)url;
	(void)ret;
	return sentence_set(s, -EOPNOTSUPP, "URLs cannot be loaded without libcurl");
}

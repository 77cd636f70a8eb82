/*
 * The server without libmicrohttpd: there is none.
 */
#include "libclient/weightctl/http/http_server.h"

#include "libclient/weightctl/output/cli_error.h"

int http_server_run(const char *address, const struct http_page *page)
{
	(void)page;
	return cli_error(
		"cannot listen at %s: this weightctl was built without libmicrohttpd; build it where "
		"libmicrohttpd-dev is installed",
		address);
}

/*
 * One page by HTTP, until a signal ends the server
 */
#pragma once

struct http_page {
	const char *path; /* "/metrics" */
	const char *type; /* of the content */
	/*
	 * Makes the page, or the sentence that says why there is none, which is sent with status 503. Returns 0 or
	 * EXIT_FAILED; the server frees the text.
	 */
	int (*make)(void *userdata, char **ret_text);
	void *userdata;
};

/*
 * Serves the page at ADDR:PORT until SIGTERM, SIGINT or SIGHUP. The number and the time of connections are bounded, and so
 * is the rate at which the page is made. Returns 0, or EXIT_FAILED after printing why.
 */
int http_server_run(const char *address, const struct http_page *page);

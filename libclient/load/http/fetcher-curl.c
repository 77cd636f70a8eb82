/*
 * Files of servers, by libcurl, which is opened when the first URL is given: other loads do without it.
 *
 * Each read uses an idle line, a connection with a transfer of its own, and writes the body to the memory of the caller. A reply is
 * judged by its head before the first byte of its body is taken. What may pass is tried again, from the first byte that is missing.
 */
#define CURL_DISABLE_TYPECHECK /* its macros have the names of the functions below */
#include "libclient/load/http/fetcher.h"

#include <curl/curl.h>
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "libclient/load/http/url.h"

#define SONAME "libcurl.so.4"
#define TRIES_MAX 6
#define BACKOFF_MS 200 /* before the second try; twice as much before each further one */
#define RETRY_AFTER_MAX_S 30
#define TICK_MS 100
#define REDIRECTS_MAX 5L
#define SLOW_SIZE 1024L /* bytes a second */
#define SLOW_S 30 /* slower than that for so long is no reply */
#define RECEIVE_SIZE (256L << 10)
#define HEAD_SIZE (64 * KIB) /* read first, and kept: most headers are in it */

#define CURL_FUNCTIONS(X)                                                                          \
	X(curl_global_init)                                                                        \
	X(curl_easy_init)                                                                          \
	X(curl_easy_cleanup)                                                                       \
	X(curl_easy_setopt)                                                                        \
	X(curl_easy_getinfo)                                                                       \
	X(curl_easy_header)                                                                        \
	X(curl_easy_strerror)                                                                      \
	X(curl_multi_init)                                                                         \
	X(curl_multi_cleanup)                                                                      \
	X(curl_multi_add_handle)                                                                   \
	X(curl_multi_remove_handle)                                                                \
	X(curl_multi_perform)                                                                      \
	X(curl_multi_poll)                                                                         \
	X(curl_multi_info_read)                                                                    \
	X(curl_url)                                                                                \
	X(curl_url_cleanup)                                                                        \
	X(curl_url_get)                                                                            \
	X(curl_url_set)                                                                            \
	X(curl_url_strerror)                                                                       \
	X(curl_free)

/* Written once. */
static struct {
#define X(function) __typeof__(function) *function;
	CURL_FUNCTIONS(X)
#undef X
} lib;
static pthread_once_t lib_once = PTHREAD_ONCE_INIT;
static char lib_why[256]; /* it cannot be used */

struct line {
	struct line *next; /* fetcher::idle */
	CURL *easy;
	CURLM *multi;
	char error[CURL_ERROR_SIZE];
};

struct fetcher {
	const char *ca_file; /* NULL: libcurl's */
	long slow_s;
	fetcher_stop_fn stop;
	void *userdata;
	pthread_mutex_t lock; /* protects the rest, and http_file::url_led_to */
	struct line *idle;
};

struct http_file {
	struct remote remote;
	struct fetcher *fetcher;
	char *shown, *url;
	char *url_led_to; /* by redirects; NULL: nowhere else, or not for long */
	char *validator;
	uint64_t size;
	char *head;
	uint64_t n_head;
};

/* A range of a file on its way. */
struct part {
	struct http_file *file;
	struct line *line;
	char *to;
	uint64_t offset, size;
	uint64_t done;
	bool is_first; /* of its file: the size is to be found */
	enum {
		REPLY_UNKNOWN,
		REPLY_TAKEN,
		REPLY_PASSING,
		REPLY_REFUSED
	} reply;
	int r; /* of a refused reply */
	struct sentence *s;
};

#define QUOTE_PATH(path) file_quote(&(struct quote){0}, path)

/* --- The library -------------------------------------------------------------------------------- */

static void lib_open(void)
{
	void *library = dlopen(SONAME, RTLD_NOW | RTLD_LOCAL);

	if (!library) {
		(void)snprintf(lib_why, sizeof(lib_why),
			       "%s; install it (Debian's package libcurl4)", dlerror());
		return;
	}
	/* POSIX allows it, ISO C does not: a function pointer from dlsym(). */
#define X(function)                                                                                \
	*(void **)&lib.function = dlsym(library, #function);                                       \
	if (!lib.function) {                                                                       \
		(void)snprintf(lib_why, sizeof(lib_why),                                           \
			       SONAME " lacks " #function "; install 7.85 or newer");              \
		return;                                                                            \
	}
	CURL_FUNCTIONS(X)
#undef X
	if (lib.curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
		(void)snprintf(lib_why, sizeof(lib_why), SONAME " cannot be initialized");
}

/* As curl(1) does. */
static const char *ca_file_of(void)
{
	const char *path = secure_getenv("CURL_CA_BUNDLE");

	return path && *path ? path : secure_getenv("SSL_CERT_FILE");
}

static long slow_s_of(void)
{
	const char *text = secure_getenv("WEIGHTD_HTTP_TIMEOUT");
	uint64_t s;

	return text && num_parse(text, 10, &s) == 0 && s > 0 && s <= 3600 ? (long)s : SLOW_S;
}

int fetcher_new(struct fetcher **ret, struct sentence *s)
{
	struct fetcher *f;

	(void)pthread_once(&lib_once, lib_open);
	if (lib_why[0])
		return sentence_set(s, -EOPNOTSUPP, "URLs cannot be loaded: %s", lib_why);
	f = calloc(1, sizeof(*f));
	if (!f)
		return sentence_set(s, -ENOMEM, "out of memory");
	f->ca_file = ca_file_of();
	f->slow_s = slow_s_of();
	(void)pthread_mutex_init(&f->lock, NULL);
	*ret = f;
	return 0;
}

void fetcher_set_stop(struct fetcher *f, fetcher_stop_fn fn, void *userdata)
{
	f->stop = fn;
	f->userdata = userdata;
}

static bool fetcher_is_stopped(const struct fetcher *f)
{
	return f->stop && f->stop(f->userdata);
}

/* --- Lines -------------------------------------------------------------------------------------- */

static struct line *line_free(struct line *l)
{
	if (!l)
		return NULL;
	if (l->multi)
		(void)lib.curl_multi_cleanup(l->multi);
	if (l->easy)
		lib.curl_easy_cleanup(l->easy);
	free(l);
	return NULL;
}

struct fetcher *fetcher_free(struct fetcher *f)
{
	if (!f)
		return NULL;
	for (struct line *l = f->idle, *next; l; l = next) {
		next = l->next;
		(void)line_free(l);
	}
	(void)pthread_mutex_destroy(&f->lock);
	free(f);
	return NULL;
}

static size_t part_receive(char *bytes, size_t size, size_t n, void *userdata);

static bool line_set_options(const struct fetcher *f, struct line *l)
{
	CURL *e = l->easy;
	CURLcode r = lib.curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https");

	/* The rest cannot fail: these are numbers and pointers. */
	(void)lib.curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
	(void)lib.curl_easy_setopt(e, CURLOPT_ERRORBUFFER, l->error);
	(void)lib.curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, part_receive);
	(void)lib.curl_easy_setopt(e, CURLOPT_BUFFERSIZE, RECEIVE_SIZE);
	(void)lib.curl_easy_setopt(e, CURLOPT_FOLLOWLOCATION, 1L);
	(void)lib.curl_easy_setopt(e, CURLOPT_MAXREDIRS, REDIRECTS_MAX);
	(void)lib.curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT, f->slow_s);
	(void)lib.curl_easy_setopt(e, CURLOPT_LOW_SPEED_LIMIT, SLOW_SIZE);
	(void)lib.curl_easy_setopt(e, CURLOPT_LOW_SPEED_TIME, f->slow_s);
	if (r == CURLE_OK)
		r = lib.curl_easy_setopt(e, CURLOPT_USERAGENT, "weightd");
	if (r == CURLE_OK && f->ca_file)
		r = lib.curl_easy_setopt(e, CURLOPT_CAINFO, f->ca_file);
	return r == CURLE_OK;
}

/* An idle line, or a new one. NULL: out of memory. */
static struct line *line_take(struct fetcher *f)
{
	struct line *l;

	(void)pthread_mutex_lock(&f->lock);
	l = f->idle;
	if (l)
		f->idle = l->next;
	(void)pthread_mutex_unlock(&f->lock);
	if (l)
		return l;
	l = calloc(1, sizeof(*l));
	if (!l)
		return NULL;
	l->multi = lib.curl_multi_init();
	l->easy = lib.curl_easy_init();
	return l->multi && l->easy && line_set_options(f, l) ? l : line_free(l);
}

static void line_give(struct fetcher *f, struct line *l)
{
	(void)pthread_mutex_lock(&f->lock);
	l->next = f->idle;
	f->idle = l;
	(void)pthread_mutex_unlock(&f->lock);
}

/* 0; -ECANCELED */
static int line_wait(const struct fetcher *f, struct line *l, unsigned ms)
{
	for (unsigned left = ms, n; left > 0; left -= n) {
		n = left < TICK_MS ? left : TICK_MS;
		if (fetcher_is_stopped(f))
			return -ECANCELED;
		(void)lib.curl_multi_poll(l->multi, NULL, 0, (int)n, NULL);
	}
	return 0;
}

/* CURLE_ABORTED_BY_CALLBACK: stopped */
static CURLcode line_perform(const struct fetcher *f, struct line *l)
{
	CURLcode result = CURLE_ABORTED_BY_CALLBACK;
	CURLMcode r = CURLM_OK;
	const CURLMsg *message;
	int n_running = 1, n;

	l->error[0] = '\0';
	if (lib.curl_multi_add_handle(l->multi, l->easy) != CURLM_OK)
		return CURLE_OUT_OF_MEMORY;
	while (r == CURLM_OK && n_running > 0 && !fetcher_is_stopped(f)) {
		r = lib.curl_multi_perform(l->multi, &n_running);
		if (r == CURLM_OK && n_running > 0)
			r = lib.curl_multi_poll(l->multi, NULL, 0, TICK_MS, NULL);
	}
	if (r != CURLM_OK)
		result = CURLE_FAILED_INIT;
	while ((message = lib.curl_multi_info_read(l->multi, &n)))
		if (message->msg == CURLMSG_DONE)
			result = message->data.result;
	(void)lib.curl_multi_remove_handle(l->multi, l->easy);
	return result;
}

/* --- Replies ------------------------------------------------------------------------------------ */

/* NULL: the reply has no such header. */
static const char *reply_header(const struct part *p, const char *name)
{
	struct curl_header *h;

	return lib.curl_easy_header(p->line->easy, name, 0, CURLH_HEADER, -1, &h) == CURLHE_OK
		       ? h->value
		       : NULL;
}

__attribute__((format(printf, 3, 4))) static bool refuse(struct part *p, int r, const char *fmt, ...)
{
	char why[SENTENCE_MAX];
	va_list args;

	va_start(args, fmt);
	(void)vsnprintf(why, sizeof(why), fmt, args);
	va_end(args);
	p->reply = REPLY_REFUSED;
	p->r = sentence_set(p->s, r, "cannot fetch %s: %s", QUOTE_PATH(p->file->shown), why);
	return false;
}

static bool refuse_status(struct part *p, long status)
{
	struct sentence *s = p->s;

	if (status == 408 || status == 425 || status == 429 || status >= 500) {
		p->reply = REPLY_PASSING;
		p->r = sentence_set(s, -EIO, "cannot fetch %s: the server replies with status %ld",
				    QUOTE_PATH(p->file->shown), status);
		return false;
	}
	if (status == 404 || status == 410)
		return refuse(p, -ENOENT, "the server has no such file (status %ld)", status);
	if (status == 401 || status == 403)
		return refuse(p, -EACCES,
			      "the server refuses it (status %ld); a signed URL may have expired",
			      status);
	if (status == 412 || status == 416)
		return refuse(p, -EBADMSG, "the server has no such range (status %ld)", status);
	return refuse(p, -EIO, "the server replies with status %ld", status);
}

/* Digits up to `end`. */
static bool take_number(const char **text, char end, uint64_t *ret)
{
	char digits[24];
	size_t n = strspn(*text, "0123456789");

	if (n == 0 || n >= sizeof(digits) || (*text)[n] != end)
		return false;
	memcpy(digits, *text, n);
	digits[n] = '\0';
	*text += n + (end != '\0');
	return num_parse(digits, 10, ret) == 0;
}

struct content_range {
	uint64_t first, last, size;
};

static bool parse_content_range(const char *text, struct content_range *ret)
{
	if (!text || strncasecmp(text, "bytes ", 6) != 0)
		return false;
	text += 6;
	return take_number(&text, '-', &ret->first) && take_number(&text, '/', &ret->last) &&
	       take_number(&text, '\0', &ret->size) && ret->first <= ret->last &&
	       ret->last < ret->size && ret->size <= INT64_MAX;
}

/* A small file may be sent as a whole. */
static bool take_whole(struct part *p)
{
	curl_off_t n = -1;

	(void)lib.curl_easy_getinfo(p->line->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &n);
	if (!p->is_first || n < 0 || (uint64_t)n > p->size)
		return refuse(p, -EOPNOTSUPP,
			      "the server sends no ranges of it (status 200); download the file and "
			      "load that");
	p->file->size = (uint64_t)n;
	p->done = 0;
	return true;
}

static bool take_range(struct part *p)
{
	const char *text = reply_header(p, "Content-Range");
	const uint64_t offset = p->offset + p->done;
	struct content_range range;
	uint64_t end;

	if (!parse_content_range(text, &range))
		return refuse(p, -EBADMSG, "the server sends a range without saying which");
	if (p->is_first)
		p->file->size = range.size;
	else if (range.size != p->file->size)
		return refuse(p, -EBADMSG,
			      "its size changed from %" PRIu64 " to %" PRIu64
			      " while it was loaded; load it again",
			      p->file->size, range.size);
	end = p->offset + p->size < range.size ? p->offset + p->size : range.size;
	if (range.first != offset || range.last + 1 != end)
		return refuse(p, -EBADMSG,
			      "the server was asked for bytes %" PRIu64 " to %" PRIu64
			      " and sends %" PRIu64 " to %" PRIu64,
			      offset, end - 1, range.first, range.last);
	return true;
}

/* Compares with the first reply. */
static bool check_validator(struct part *p)
{
	const char *now = reply_header(p, "ETag");
	struct http_file *f = p->file;

	if (!now)
		now = reply_header(p, "Last-Modified");
	if (!now)
		return refuse(p, -EOPNOTSUPP,
			      "the server sends neither an ETag nor Last-Modified, without which a "
			      "change would go unseen; download the file and load that");
	if (!f->validator) {
		f->validator = strdup(now);
		return f->validator || refuse(p, -ENOMEM, "out of memory");
	}
	return !strcmp(now, f->validator) ||
	       refuse(p, -EBADMSG, "it changed on the server while it was loaded; load it again");
}

/* Judges the head of a reply. True: its body is what was asked for. */
static bool take_reply(struct part *p)
{
	const char *encoding = reply_header(p, "Content-Encoding");
	long status = 0;

	(void)lib.curl_easy_getinfo(p->line->easy, CURLINFO_RESPONSE_CODE, &status);
	if (status != 200 && status != 206)
		return refuse_status(p, status);
	if (encoding && strcasecmp(encoding, "identity") != 0)
		return refuse(p, -EBADMSG, "the server sends it encoded, which was not asked for");
	if (!(status == 206 ? take_range(p) : take_whole(p)) || !check_validator(p))
		return false;
	if (p->is_first && p->file->size < p->size)
		p->size = p->file->size;
	p->reply = REPLY_TAKEN;
	return true;
}

/* Returns less than `n` to end the transfer. */
static size_t part_receive(char *bytes, size_t size, size_t n, void *userdata)
{
	struct part *p = userdata;

	(void)size; /* 1 */
	if (p->reply == REPLY_UNKNOWN && !take_reply(p))
		return 0;
	if (n > p->size - p->done) {
		(void)refuse(p, -EBADMSG, "the server sends more than it was asked for");
		return 0;
	}
	memcpy(p->to + p->done, bytes, n);
	p->done += n;
	return n;
}

/* --- Parts -------------------------------------------------------------------------------------- */

/* Nothing listens where a wrong port is named, either. */
static bool is_passing(const struct part *p, CURLcode code)
{
	return (code == CURLE_COULDNT_CONNECT && !p->is_first) || code == CURLE_RECV_ERROR ||
	       code == CURLE_SEND_ERROR || code == CURLE_PARTIAL_FILE ||
	       code == CURLE_GOT_NOTHING || code == CURLE_OPERATION_TIMEDOUT ||
	       code == CURLE_HTTP2 || code == CURLE_HTTP2_STREAM;
}

static int part_failed(const struct part *p, CURLcode code)
{
	char *why = p->line->error;

	for (char *c = why; *c; c++) /* a certificate's text, perhaps */
		if (*c < ' ' || *c > '~')
			*c = '?';
	return sentence_set(p->s, code == CURLE_OPERATION_TIMEDOUT ? -ETIMEDOUT : -EIO,
			    "cannot fetch %s: %.200s", QUOTE_PATH(p->file->shown),
			    *why ? why : lib.curl_easy_strerror(code));
}

static CURLcode part_ask(struct part *p, bool *ret_led)
{
	struct fetcher *f = p->file->fetcher;
	CURL *e = p->line->easy;
	char range[48];
	const char *url;
	CURLcode r;

	(void)snprintf(range, sizeof(range), "%" PRIu64 "-%" PRIu64, p->offset + p->done,
		       p->offset + p->size - 1);
	(void)pthread_mutex_lock(&f->lock);
	*ret_led = p->file->url_led_to != NULL;
	url = *ret_led ? p->file->url_led_to : p->file->url;
	r = lib.curl_easy_setopt(e, CURLOPT_URL, url); /* copies it */
	if (r == CURLE_OK)
		r = lib.curl_easy_setopt(e, CURLOPT_REDIR_PROTOCOLS_STR,
					 strncasecmp(url, "https:", 6) == 0 ? "https"
									    : "http,https");
	(void)pthread_mutex_unlock(&f->lock);
	if (r == CURLE_OK)
		r = lib.curl_easy_setopt(e, CURLOPT_RANGE, range);
	(void)lib.curl_easy_setopt(e, CURLOPT_WRITEDATA, p);
	return r == CURLE_OK ? line_perform(f, p->line) : r;
}

/* The next reads begin where redirects led; or, as what they lead to may expire, where the first one did. */
static void part_remember(const struct part *p, bool was_led)
{
	struct fetcher *f = p->file->fetcher;
	char *url = NULL;
	long n = 0;

	(void)lib.curl_easy_getinfo(p->line->easy, CURLINFO_REDIRECT_COUNT, &n);
	if (p->reply == REPLY_TAKEN && n == 0)
		return;
	if (p->reply == REPLY_TAKEN)
		(void)lib.curl_easy_getinfo(p->line->easy, CURLINFO_EFFECTIVE_URL, &url);
	else if (!was_led)
		return;
	(void)pthread_mutex_lock(&f->lock);
	free(p->file->url_led_to);
	p->file->url_led_to = url ? strdup(url) : NULL;
	(void)pthread_mutex_unlock(&f->lock);
}

/* 0: all of it is there; 1, with a sentence: it may be tried again. */
static int part_try(struct part *p)
{
	CURLcode code;
	bool was_led;

	p->reply = REPLY_UNKNOWN;
	code = part_ask(p, &was_led);
	if (code == CURLE_ABORTED_BY_CALLBACK)
		return sentence_set(p->s, -ECANCELED, "the load was cancelled");
	if (code == CURLE_OK && p->reply == REPLY_UNKNOWN)
		(void)take_reply(p); /* without a body */
	part_remember(p, was_led);
	if (p->reply == REPLY_PASSING)
		return 1;
	if (p->reply == REPLY_REFUSED)
		return was_led && (p->r == -EACCES || p->r == -ENOENT) ? 1 : p->r;
	if (code == CURLE_OK && p->done == p->size)
		return 0;
	p->r = part_failed(p, code == CURLE_OK ? CURLE_PARTIAL_FILE : code);
	return code == CURLE_OK || is_passing(p, code) ? 1 : p->r;
}

/* As long as the server asks for, within reason. */
static unsigned part_backoff(const struct part *p, unsigned n_tries)
{
	unsigned ms = BACKOFF_MS << (n_tries - 1);
	curl_off_t s = 0;

	(void)lib.curl_easy_getinfo(p->line->easy, CURLINFO_RETRY_AFTER, &s);
	if (s > RETRY_AFTER_MAX_S)
		s = RETRY_AFTER_MAX_S;
	return s * 1000 > ms ? (unsigned)s * 1000 : ms;
}

static int part_fetch(struct part *p)
{
	for (unsigned n = 1;; n++) {
		int r = part_try(p);

		if (r <= 0)
			return r;
		if (n == TRIES_MAX)
			return p->r;
		if (line_wait(p->file->fetcher, p->line, part_backoff(p, n)) < 0)
			return sentence_set(p->s, -ECANCELED, "the load was cancelled");
	}
}

static int http_fetch(struct http_file *f, struct part *p, struct sentence *s)
{
	int r;

	p->file = f;
	p->s = s;
	p->line = line_take(f->fetcher);
	if (!p->line)
		return sentence_set(s, -ENOMEM, "out of memory");
	r = part_fetch(p);
	line_give(f->fetcher, p->line);
	return r;
}

/* --- Files -------------------------------------------------------------------------------------- */

static struct http_file *http_free(struct http_file *f)
{
	if (!f)
		return NULL;
	free(f->shown);
	free(f->url);
	free(f->url_led_to);
	free(f->validator);
	free(f->head);
	free(f);
	return NULL;
}

CLEANUP_POINTER(struct http_file, http_free);

static void http_close(struct remote *remote)
{
	(void)http_free((struct http_file *)remote);
}

static int http_read(struct remote *remote, void *buffer, uint64_t size, uint64_t offset,
		     struct sentence *s)
{
	struct http_file *f = (struct http_file *)remote;
	uint64_t n_had = offset < f->n_head ? f->n_head - offset : 0;
	struct part p = {0};

	if (n_had > size)
		n_had = size;
	if (n_had > 0)
		memcpy(buffer, f->head + offset, n_had);
	if (n_had == size)
		return 0;
	p.to = (char *)buffer + n_had;
	p.offset = offset + n_had;
	p.size = size - n_had;
	return http_fetch(f, &p, s);
}

static const struct remote_kind http_kind = {
	.read = http_read,
	.close = http_close,
};

static bool url_has(CURLU *u, CURLUPart part)
{
	char *text = NULL;
	bool has = lib.curl_url_get(u, part, &text, 0) == CURLUE_OK;

	lib.curl_free(text);
	return has;
}

static int check_parsed(CURLU *u, const char *url, struct sentence *s)
{
	CURLUcode r = lib.curl_url_set(u, CURLUPART_URL, url, CURLU_NON_SUPPORT_SCHEME);

	if (r != CURLUE_OK)
		return sentence_set(s, -EINVAL, "a URL cannot be used: %s",
				    lib.curl_url_strerror(r));
	if (url_has(u, CURLUPART_USER) || url_has(u, CURLUPART_PASSWORD))
		return sentence_set(s, -EINVAL,
				    "a URL with a user or a password cannot be used, as any user of "
				    "the machine sees it in the list of processes; use a signed URL");
	if (strncasecmp(url, "http:", 5) != 0 && strncasecmp(url, "https:", 6) != 0)
		return sentence_set(s, -EINVAL,
				    "'%.*s' URLs cannot be loaded: use one of https or http; 'weightctl "
				    "load' takes weightd://NODE/NAME, too",
				    (int)strcspn(url, ":"), url);
	return 0;
}

static int check_url(const char *url, struct sentence *s)
{
	CURLU *u = lib.curl_url();
	int r = u ? check_parsed(u, url, s) : sentence_set(s, -ENOMEM, "out of memory");

	lib.curl_url_cleanup(u);
	return r;
}

int fetcher_open(struct fetcher *fetcher, const char *url, struct file *ret, struct sentence *s)
{
	cleanup(http_freep) struct http_file *f = calloc(1, sizeof(*f));
	struct part p = {.size = HEAD_SIZE, .is_first = true};
	cleanup(freep) char *path = url_shown(url);
	int r = check_url(url, s);

	if (r < 0)
		return r;
	if (f) {
		f->remote.kind = &http_kind;
		f->fetcher = fetcher;
		f->shown = url_shown(url);
		f->url = strdup(url);
		f->head = malloc(HEAD_SIZE);
	}
	if (!path || !f || !f->shown || !f->url || !f->head)
		return sentence_set(s, -ENOMEM, "out of memory");
	p.to = f->head;
	r = http_fetch(f, &p, s);
	if (r < 0)
		return r;
	f->n_head = p.size;
	*ret = (struct file){
		.path = take_ptr(path),
		.fd = -1,
		.identity.size = f->size,
		.remote = &take_ptr(f)->remote,
	};
	return 0;
}

/*
 * A named value inside of a struct: one row in `kinds` for each type that a value can have.
 */
#include "libclient/weightctl/output/column.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include "weightd.h"

#include "libclient/weightctl/output/clock.h"
#include "libclient/weightctl/output/escape.h"
#include "libclient/weightctl/output/size.h"

#define KEY_MAX 32 /* names of columns are short literals */

struct kind {
	bool number;
	/* Write the value at `v`; false and nothing written if there is none. */
	bool (*text)(const void *v, bool bytes, FILE *f);
	bool (*json)(const void *v, const char *key, struct json *j);
	const char *suffix; /* suffix of the key in JSON: the unit */
};

static uint32_t u32(const void *v)
{
	return *(const uint32_t *)v;
}

static uint64_t u64(const void *v)
{
	return *(const uint64_t *)v;
}

static bool u32_text(const void *v, bool bytes, FILE *f)
{
	(void)bytes;
	(void)fprintf(f, "%" PRIu32, u32(v));
	return true;
}

static bool u32_json(const void *v, const char *key, struct json *j)
{
	json_put_number(j, key, u32(v));
	return true;
}

static bool u64_text(const void *v, bool bytes, FILE *f)
{
	(void)bytes;
	(void)fprintf(f, "%" PRIu64, u64(v));
	return true;
}

static bool u64_json(const void *v, const char *key, struct json *j)
{
	json_put_number(j, key, u64(v));
	return true;
}

static bool version_text(const void *v, bool bytes, FILE *f)
{
	return u64(v) && u64_text(v, bytes, f);
}

static bool version_json(const void *v, const char *key, struct json *j)
{
	return u64(v) && u64_json(v, key, j);
}

static bool index_text(const void *v, bool bytes, FILE *f)
{
	return u32(v) != UINT32_MAX && u32_text(v, bytes, f);
}

static bool index_json(const void *v, const char *key, struct json *j)
{
	return u32(v) != UINT32_MAX && u32_json(v, key, j);
}

static bool string_text(const void *v, bool bytes, FILE *f)
{
	const char *s = *(const char *const *)v;

	(void)bytes;
	if (!s || !*s)
		return false;
	escape_name(f, s);
	return true;
}

static bool string_json(const void *v, const char *key, struct json *j)
{
	const char *s = *(const char *const *)v;

	if (s)
		json_put_string(j, key, s);
	return s;
}

static bool size_column_text(const void *v, bool bytes, FILE *f)
{
	char buf[SIZE_TEXT_MAX];

	if (bytes)
		return u64_text(v, bytes, f);
	(void)fputs(size_text(buf, u64(v)), f);
	return true;
}

static bool counted_text(const void *v, bool bytes, FILE *f)
{
	return u64(v) != UINT64_MAX && size_column_text(v, bytes, f);
}

static bool counted_json(const void *v, const char *key, struct json *j)
{
	return u64(v) != UINT64_MAX && u64_json(v, key, j);
}

static bool count_text(const void *v, bool bytes, FILE *f)
{
	return u64(v) != UINT64_MAX && u64_text(v, bytes, f);
}

static bool part_text(const void *v, bool bytes, FILE *f)
{
	const uint64_t *n = v;
	char buf[SIZE_TEXT_MAX];
	const char *text = size_part(buf, n[0], n[1]);

	(void)bytes;
	if (text)
		(void)fputs(text, f);
	return text;
}

static bool part_json(const void *v, const char *key, struct json *j)
{
	const uint64_t *n = v;
	double percent;

	if (!size_percent(n[0], n[1], &percent))
		return false;
	json_put_double(j, key, percent);
	return true;
}

static bool of_text(const void *v, bool bytes, FILE *f)
{
	const uint32_t *n = v;

	(void)bytes;
	(void)fprintf(f, "%" PRIu32 "/%" PRIu32, n[0], n[1]);
	return true;
}

static bool used_text(const void *v, bool bytes, FILE *f)
{
	const uint64_t *n = v;

	(void)u64_text(&n[0], bytes, f);
	(void)fputc('/', f);
	if (n[1] == WEIGHTD_UNLIMITED)
		(void)fputc('-', f);
	else
		(void)u64_text(&n[1], bytes, f);
	return true;
}

static bool used_size_text(const void *v, bool bytes, FILE *f)
{
	const uint64_t *n = v;

	(void)size_column_text(&n[0], bytes, f);
	(void)fputc('/', f);
	if (n[1] == WEIGHTD_UNLIMITED)
		(void)fputc('-', f);
	else
		(void)size_column_text(&n[1], bytes, f);
	return true;
}

static bool used_json(const void *v, const char *key, struct json *j)
{
	const uint64_t *n = v;

	json_open(j, key, '{');
	json_put_number(j, "used", n[0]);
	if (n[1] == WEIGHTD_UNLIMITED)
		json_put_null(j, "max");
	else
		json_put_number(j, "max", n[1]);
	json_close(j, '}');
	return true;
}

/* 0 for a time in the future: another clock may have written it. */
static uint64_t ago_ns(uint64_t realtime_ns)
{
	uint64_t now_ns = clock_ns(CLOCK_REALTIME);

	return now_ns > realtime_ns ? now_ns - realtime_ns : 0;
}

static bool age_text(const void *v, bool bytes, FILE *f)
{
	char buf[SIZE_TEXT_MAX];

	(void)bytes;
	if (!u64(v))
		return false;
	(void)fputs(size_age(buf, ago_ns(u64(v))), f);
	return true;
}

static bool age_json(const void *v, const char *key, struct json *j)
{
	if (u64(v))
		json_put_number(j, key, ago_ns(u64(v)));
	return u64(v);
}

/* Whole seconds, because that is what jq's fromdate can read; AGE has the rest. */
static bool time_format(char *buf, size_t size, uint64_t ns)
{
	time_t s = (time_t)(ns / 1000000000);
	struct tm tm;

	return ns && gmtime_r(&s, &tm) && strftime(buf, size, "%Y-%m-%dT%H:%M:%SZ", &tm);
}

static bool time_text(const void *v, bool bytes, FILE *f)
{
	char buf[SIZE_TEXT_MAX];

	(void)bytes;
	if (!time_format(buf, sizeof(buf), u64(v)))
		return false;
	(void)fputs(buf, f);
	return true;
}

static bool time_json(const void *v, const char *key, struct json *j)
{
	char buf[SIZE_TEXT_MAX];

	if (!time_format(buf, sizeof(buf), u64(v)))
		return false;
	json_put_string(j, key, buf);
	return true;
}

static bool duration_text(const void *v, bool bytes, FILE *f)
{
	char buf[SIZE_TEXT_MAX];

	(void)bytes;
	if (u64(v) == UINT64_MAX)
		return false;
	(void)fputs(size_duration(buf, u64(v)), f);
	return true;
}

static bool microseconds_text(const void *v, bool bytes, FILE *f)
{
	(void)bytes;
	if (u64(v) == UINT64_MAX)
		return false;
	(void)fprintf(f, "%.1f us", (double)u64(v) / 1e3);
	return true;
}

static bool clock_text(const void *v, bool bytes, FILE *f)
{
	char buf[SIZE_TEXT_MAX];

	(void)bytes;
	if (u64(v) == UINT64_MAX)
		return false;
	(void)fputs(size_clock(buf, u64(v)), f);
	return true;
}

static bool rate_text(const void *v, bool bytes, FILE *f)
{
	char buf[SIZE_TEXT_MAX];

	if (bytes)
		return version_text(v, bytes, f);
	if (u64(v))
		(void)fputs(size_rate(buf, u64(v), 1000000000), f);
	return u64(v);
}

static bool double_text(const void *v, bool bytes, FILE *f)
{
	double d = *(const double *)v;

	(void)bytes;
	if (isfinite(d))
		(void)fprintf(f, "%.5g", d);
	return isfinite(d);
}

static bool double_json(const void *v, const char *key, struct json *j)
{
	double d = *(const double *)v;

	if (isfinite(d))
		json_put_double(j, key, d);
	return isfinite(d);
}

static bool bool_text(const void *v, bool bytes, FILE *f)
{
	(void)bytes;
	(void)fputs(*(const bool *)v ? "yes" : "no", f);
	return true;
}

static bool bool_json(const void *v, const char *key, struct json *j)
{
	json_put_bool(j, key, *(const bool *)v);
	return true;
}

static bool mode_text(const void *v, bool bytes, FILE *f)
{
	(void)bytes;
	(void)fprintf(f, "%04" PRIo32, u32(v));
	return true;
}

static bool mode_json(const void *v, const char *key, struct json *j)
{
	char buf[16];

	(void)snprintf(buf, sizeof(buf), "%04" PRIo32, u32(v));
	json_put_string(j, key, buf);
	return true;
}

static char *put_hex(char *at, const uint8_t *bytes)
{
	for (size_t i = 0; i < WEIGHTD_DIGEST_SIZE; i++)
		at += sprintf(at, "%02x", bytes[i]);
	return at;
}

const char *column_digest(char buf[COLUMN_DIGEST_MAX], const uint8_t *digest)
{
	(void)put_hex(stpcpy(buf, "xxh3:"), digest);
	return buf;
}

static bool digest_is_none(const uint8_t *digest)
{
	static const uint8_t none[WEIGHTD_DIGEST_SIZE];

	return !memcmp(digest, none, sizeof(none));
}

static bool digest_text(const void *v, bool bytes, FILE *f)
{
	char buf[COLUMN_DIGEST_MAX];

	(void)bytes;
	if (digest_is_none(v))
		return false;
	(void)fputs(column_digest(buf, v), f);
	return true;
}

static bool digest_json(const void *v, const char *key, struct json *j)
{
	char buf[COLUMN_DIGEST_MAX];

	if (digest_is_none(v))
		return false;
	json_put_string(j, key, column_digest(buf, v));
	return true;
}

static bool hash_text(const void *v, bool bytes, FILE *f)
{
	char buf[COLUMN_DIGEST_MAX];

	(void)bytes;
	if (digest_is_none(v))
		return false;
	(void)put_hex(buf, v);
	(void)fputs(buf, f);
	return true;
}

static bool hash_json(const void *v, const char *key, struct json *j)
{
	char buf[COLUMN_DIGEST_MAX];

	if (digest_is_none(v))
		return false;
	(void)put_hex(buf, v);
	json_put_string(j, key, buf);
	return true;
}

/* A string in JSON as well: readers of JSON keep numbers as doubles, of 53 bits. */
static bool hex_text(const void *v, bool bytes, FILE *f)
{
	(void)bytes;
	(void)fprintf(f, "%016" PRIx64, u64(v));
	return true;
}

static bool hex_json(const void *v, const char *key, struct json *j)
{
	char buf[24];

	(void)snprintf(buf, sizeof(buf), "%016" PRIx64, u64(v));
	json_put_string(j, key, buf);
	return true;
}

static bool shape_text(const void *v, bool bytes, FILE *f)
{
	const struct weightd_tensor *t = v;

	(void)bytes;
	(void)fputc('[', f);
	for (uint32_t i = 0; i < t->n_dims; i++)
		(void)fprintf(f, "%s%" PRIu64, i ? ", " : "", t->shape[i]);
	(void)fputc(']', f);
	return true;
}

static bool shape_json(const void *v, const char *key, struct json *j)
{
	const struct weightd_tensor *t = v;

	json_open(j, key, '[');
	for (uint32_t i = 0; i < t->n_dims; i++)
		json_put_number(j, NULL, t->shape[i]);
	json_close(j, ']');
	return true;
}

static const struct kind kinds[] = {
	[COLUMN_TEXT] = {false, string_text, string_json, NULL},
	[COLUMN_WORD] = {false, string_text, string_json, NULL},
	[COLUMN_U32] = {true, u32_text, u32_json, NULL},
	[COLUMN_U64] = {true, u64_text, u64_json, NULL},
	[COLUMN_VERSION] = {true, version_text, version_json, NULL},
	[COLUMN_INDEX] = {true, index_text, index_json, NULL},
	[COLUMN_SIZE] = {true, size_column_text, u64_json, NULL},
	[COLUMN_COUNTED] = {true, counted_text, counted_json, NULL},
	[COLUMN_COUNT] = {true, count_text, counted_json, NULL},
	[COLUMN_PART] = {true, part_text, part_json, "_percent"},
	[COLUMN_OF] = {true, of_text, u32_json, NULL},
	[COLUMN_USED] = {true, used_text, used_json, NULL},
	[COLUMN_USED_SIZE] = {true, used_size_text, used_json, NULL},
	[COLUMN_AGE] = {true, age_text, age_json, "_ns"},
	[COLUMN_TIME] = {false, time_text, time_json, NULL},
	[COLUMN_DURATION] = {true, duration_text, counted_json, "_ns"},
	[COLUMN_MICROSECONDS] = {true, microseconds_text, counted_json, "_ns"},
	[COLUMN_CLOCK] = {true, clock_text, counted_json, "_ns"},
	[COLUMN_DOUBLE] = {true, double_text, double_json, NULL},
	[COLUMN_RATE] = {true, rate_text, version_json, NULL},
	[COLUMN_BOOL] = {false, bool_text, bool_json, NULL},
	[COLUMN_MODE] = {false, mode_text, mode_json, NULL},
	[COLUMN_DIGEST] = {false, digest_text, digest_json, NULL},
	[COLUMN_HASH] = {false, hash_text, hash_json, NULL},
	[COLUMN_HEX] = {false, hex_text, hex_json, NULL},
	[COLUMN_SHAPE] = {false, shape_text, shape_json, NULL},
};

static enum column_kind kind_in(const struct column *c, bool json)
{
	return c->kind == COLUMN_INDEX && c->word && !json ? COLUMN_WORD : c->kind;
}

/* Returns the place of the value. A word has none in the struct: it is made in `room`. */
static const void *value(const struct column *c, const void *row, bool json, const char **room)
{
	if (kind_in(c, json) != COLUMN_WORD)
		return (const char *)row + c->offset;
	*room = c->word(row, json);
	return room;
}

void column_text(const struct column *c, const void *row, bool bytes, FILE *f)
{
	const char *room;

	if (!kinds[kind_in(c, false)].text(value(c, row, false, &room), bytes, f))
		(void)fputc('-', f);
}

void column_json(const struct column *c, const void *row, struct json *j)
{
	const struct kind *kind = &kinds[c->kind];
	const char *room;
	char key[KEY_MAX];
	size_t i;

	for (i = 0; c->name[i]; i++)
		key[i] = (char)tolower((unsigned char)c->name[i]);
	(void)strcpy(key + i, kind->suffix ? kind->suffix : "");
	if (!kind->json(value(c, row, true, &room), key, j))
		json_put_null(j, key);
}

bool column_is_number(const struct column *c)
{
	return kinds[c->kind].number;
}

void column_text_all(const struct column *columns, const void *row, bool bytes, FILE *f)
{
	size_t width = 0;

	for (const struct column *c = columns; c->name; c++)
		if (strlen(c->name) > width)
			width = strlen(c->name);
	for (const struct column *c = columns; c->name; c++) {
		(void)fprintf(f, "%-*s  ", (int)width, c->name);
		column_text(c, row, bytes, f);
		(void)fputc('\n', f);
	}
}

void column_json_all(const struct column *columns, const void *row, struct json *j)
{
	for (const struct column *c = columns; c->name; c++)
		column_json(c, row, j);
}

void column_json_object(const struct column *columns, const void *row)
{
	struct json json = {.file = stdout};

	json_open(&json, NULL, '{');
	column_json_all(columns, row, &json);
	json_close(&json, '}');
}

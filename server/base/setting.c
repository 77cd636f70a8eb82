#include "server/base/setting.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>

#include "ipc/base/num.h"
#include "server/base/log.h"
#include "server/base/nss.h"

#define MS_NS UINT64_C(1000000)

/* --- Text --- */

static int setting_parse_text(const struct setting *setting, const char *text, void *ret)
{
	size_t length = strlen(text);

	if (length >= setting->max)
		return -EINVAL;
	memcpy(ret, text, length + 1);
	return 0;
}

static void setting_describe_text(const struct setting *setting, char *buf, size_t size)
{
	(void)snprintf(buf, size, "at most %" PRIu64 " bytes", setting->max - 1);
}

const struct setting_type setting_text = {.parse = setting_parse_text,
					  .describe = setting_describe_text};

/* --- Numbers --- */

static int setting_accept(const struct setting *setting, int r, uint64_t n, void *ret)
{
	if (r < 0 || n < setting->min || n > setting->max)
		return -EINVAL;
	*(uint64_t *)ret = n;
	return 0;
}

static bool is_word(const struct setting *setting, const char *text, void *ret)
{
	const char *const words[] = {setting->word, setting->other_word};

	for (size_t i = 0; i < ARRAY_LEN(words); i++) {
		if (!words[i] || strcmp(text, words[i]) != 0)
			continue;
		*(uint64_t *)ret = UINT64_MAX - i;
		return true;
	}
	return false;
}

static int setting_parse_mode(const struct setting *setting, const char *text, void *ret)
{
	uint64_t n = 0;
	int r = num_parse(text, 8, &n);

	return setting_accept(setting, r, n, ret);
}

static void setting_describe_mode(const struct setting *setting, char *buf, size_t size)
{
	(void)snprintf(buf, size, "octal digits up to %04" PRIo64, setting->max);
}

const struct setting_type setting_mode = {
	.size = sizeof(uint64_t),
	.parse = setting_parse_mode,
	.describe = setting_describe_mode,
};

static int setting_parse_bytes(const struct setting *setting, const char *text, void *ret)
{
	uint64_t n = 0;
	int r = num_parse_size(text, &n);

	return is_word(setting, text, ret) ? 0 : setting_accept(setting, r, n, ret);
}

static void setting_describe_bytes(const struct setting *setting, char *buf, size_t size)
{
	char least[32] = "";

	if (setting->min > 1024)
		(void)snprintf(least, sizeof(least), ", %jdK at least",
			       (intmax_t)(setting->min >> 10));
	(void)snprintf(buf, size, "bytes, a number with K, M, G or T%s%s%s%s%s", least,
		       setting->other_word ? ", " : "",
		       setting->other_word ? setting->other_word : "", setting->word ? ", or " : "",
		       setting->word ? setting->word : "");
}

const struct setting_type setting_bytes = {
	.size = sizeof(uint64_t),
	.parse = setting_parse_bytes,
	.describe = setting_describe_bytes,
};

static int setting_parse_count(const struct setting *setting, const char *text, void *ret)
{
	uint64_t n = 0;
	int r = num_parse(text, 10, &n);

	return is_word(setting, text, ret) ? 0 : setting_accept(setting, r, n, ret);
}

static void setting_describe_count(const struct setting *setting, char *buf, size_t size)
{
	const char * or = setting->word ? " or " : "", *word = setting->word ? setting->word : "";
	const char *comma = setting->other_word ? ", " : "";
	const char *other = setting->other_word ? setting->other_word : "";

	if (setting->max == UINT64_MAX)
		(void)snprintf(buf, size, "a number%s%s%s%s", comma, other, or, word);
	else
		(void)snprintf(buf, size, "%" PRIu64 " to %" PRIu64 "%s%s%s%s", setting->min,
			       setting->max, comma, other, or, word);
}

const struct setting_type setting_count = {
	.size = sizeof(uint64_t),
	.parse = setting_parse_count,
	.describe = setting_describe_count,
};

/* With or without decimals; those after the third are ignored. */
static int setting_parse_seconds(const struct setting *setting, const char *text, void *ret)
{
	const char *c = text;
	uint64_t ms = 0;
	int r = isdigit((unsigned char)*c) ? 0 : -EINVAL;

	for (; isdigit((unsigned char)*c) && ms <= setting->max; c++)
		ms = ms * 10 + (uint64_t)(*c - '0') * 1000;
	if (*c == '.')
		for (unsigned scale = 100; isdigit((unsigned char)*++c); scale /= 10)
			ms += (uint64_t)(*c - '0') * scale;
	r = *c ? -EINVAL : setting_accept(setting, r, ms, ret);
	if (r == 0)
		*(uint64_t *)ret *= MS_NS;
	return r;
}

static void setting_describe_seconds(const struct setting *setting, char *buf, size_t size)
{
	(void)snprintf(buf, size, "seconds, %g to %g", (double)setting->min / 1000,
		       (double)setting->max / 1000);
}

const struct setting_type setting_seconds = {
	.size = sizeof(uint64_t),
	.parse = setting_parse_seconds,
	.describe = setting_describe_seconds,
};

/* --- Words --- */

static int setting_parse_level(const struct setting *setting, const char *text, void *ret)
{
	(void)setting;
	return log_parse_level(text, ret);
}

static void setting_describe_level(const struct setting *setting, char *buf, size_t size)
{
	(void)setting;
	(void)snprintf(buf, size, "error, warning, info or debug");
}

const struct setting_type setting_level = {
	.size = sizeof(enum log_level),
	.parse = setting_parse_level,
	.describe = setting_describe_level,
};

static int setting_parse_group(const struct setting *setting, const char *text, void *ret)
{
	gid_t *gid = ret;

	(void)setting;
	if (*text)
		return nss_find_group(text, gid) < 0 ? -EINVAL : 0;
	*gid = (gid_t)-1;
	return 0;
}

static void setting_describe_group(const struct setting *setting, char *buf, size_t size)
{
	(void)setting;
	(void)snprintf(buf, size, "the name of a group there is, or a number");
}

const struct setting_type setting_group = {
	.size = sizeof(gid_t),
	.parse = setting_parse_group,
	.describe = setting_describe_group,
};

static int setting_parse_switch(const struct setting *setting, const char *text, void *ret)
{
	(void)setting;
	if (strcmp(text, "yes") != 0 && strcmp(text, "no") != 0)
		return -EINVAL;
	*(bool *)ret = !strcmp(text, "yes");
	return 0;
}

static void setting_describe_switch(const struct setting *setting, char *buf, size_t size)
{
	(void)setting;
	(void)snprintf(buf, size, "yes or no");
}

const struct setting_type setting_switch = {
	.size = sizeof(bool),
	.parse = setting_parse_switch,
	.describe = setting_describe_switch,
};

/* --- Any of them --- */

int setting_parse(const struct setting *setting, const char *text, void *ret)
{
	return setting->type->parse(setting, text, ret);
}

static size_t size_of(const struct setting *setting)
{
	return setting->type->size ? setting->type->size : (size_t)setting->max;
}

bool setting_equals(const struct setting *setting, const void *a, const void *b)
{
	/* Bytes after the end of a text do not count. */
	return setting->type == &setting_text ? !strcmp(a, b) : !memcmp(a, b, size_of(setting));
}

void setting_copy(const struct setting *setting, void *to, const void *from)
{
	memcpy(to, from, size_of(setting));
}

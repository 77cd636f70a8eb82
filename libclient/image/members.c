#include "libclient/image/members.h"

#include <errno.h>

#include "ipc/base/num.h"
#include "libclient/image/eight.h"

static int members_broken(struct members *m, const char *why)
{
	m->why = why;
	return -EBADMSG;
}

static bool is_space(char c)
{
	return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* The next character, '\0' at the end of the text. A NUL in the text is no JSON anyway. */
static char members_peek(const struct members *m)
{
	return m->at < m->size ? m->text[m->at] : '\0';
}

static char peek_past_space(struct members *m)
{
	while (m->at < m->size && is_space(m->text[m->at]))
		m->at++;
	return members_peek(m);
}

/* Steps over a string; what is in it is for jansson to judge. */
static int skip_string(struct members *m)
{
	for (m->at++; m->at < m->size; m->at++) {
		char c;

		while (m->size - m->at > 8 && eight_are_plain(m->text + m->at))
			m->at += 8;
		c = m->text[m->at];

		if (c == '\\') {
			m->at++;
		} else if (c == '"') {
			m->at++;
			return 0;
		}
	}
	m->at = m->size; /* a backslash may have stood last */
	return members_broken(m, "a string does not end");
}

/* jansson reads -0 as the integer 0, other readers as a float. */
static bool at_negative_zero(const struct members *m)
{
	char c;

	if (m->size - m->at < 2 || m->text[m->at] != '-' || m->text[m->at + 1] != '0')
		return false;
	if (m->at && (m->text[m->at - 1] == 'e' || m->text[m->at - 1] == 'E')) /* an exponent's */
		return false;
	c = m->at + 2 < m->size ? m->text[m->at + 2] : '\0';
	return c != '.' && c != 'e' && c != 'E';
}

/* Steps over an array or object: to the bracket that closes the first one, whatever stands between. */
static int skip_container(struct members *m)
{
	unsigned depth = 1; /* the object that is walked */
	int r;

	while (m->at < m->size) {
		switch (m->text[m->at]) {
		case '"':
			r = skip_string(m);
			if (r < 0)
				return r;
			continue;
		case '{':
		case '[':
			if (++depth >= MEMBERS_DEPTH_MAX)
				return members_broken(m, "arrays and objects are nested too deep");
			break;
		case '}':
		case ']':
			if (--depth == 1) {
				m->at++;
				return 0;
			}
			break;
		case '-':
			if (at_negative_zero(m))
				return members_broken(m, "a number is a negative zero");
			break;
		case '\0': /* jansson 2.14 overlooks one behind a number */
			return members_broken(m, "it holds NUL");
		default:
			break;
		}
		m->at++;
	}
	return members_broken(m, "an array or object does not end");
}

static int skip_scalar(struct members *m)
{
	uint64_t start = m->at;

	if (at_negative_zero(m))
		return members_broken(m, "a number is a negative zero");
	while (m->at < m->size) {
		char c = m->text[m->at];

		if (c == '\0')
			return members_broken(m, "it holds NUL");
		if (is_space(c) || c == ',' || c == '}' || c == ']')
			break;
		m->at++;
	}
	return m->at > start ? 0 : members_broken(m, "a value is missing");
}

int members_value(struct members *m, struct span *ret)
{
	char c = peek_past_space(m);
	uint64_t start = m->at;
	int r;

	if (c == '"')
		r = skip_string(m);
	else if (c == '{' || c == '[')
		r = skip_container(m);
	else
		r = skip_scalar(m);
	if (r < 0)
		return r;
	*ret = (struct span){m->text + start, m->at - start};
	return 0;
}

static int end_of_text(struct members *m)
{
	m->at++;
	(void)peek_past_space(m);
	return m->at == m->size ? 0 : members_broken(m, "there is text after the end of the object");
}

void members_init(struct members *m, const char *text, uint64_t size)
{
	*m = (struct members){.text = text, .size = size};
}

/* Moves to the next key. 0 when there is none. */
static int next_key(struct members *m)
{
	char c = peek_past_space(m);

	if (!m->begun) {
		m->begun = true;
		if (c != '{')
			return members_broken(m, "it is not an object");
		m->at++;
		c = peek_past_space(m);
		if (c == '}')
			return end_of_text(m);
	} else if (c == '}') {
		return end_of_text(m);
	} else if (c == ',') {
		m->at++;
		c = peek_past_space(m);
	} else {
		return members_broken(m, "',' or '}' is missing");
	}
	return c == '"' ? 1 : members_broken(m, "a key is missing");
}

int members_key(struct members *m, struct span *ret)
{
	struct span key;
	int r;

	r = next_key(m);
	if (r <= 0)
		return r;
	r = members_value(m, &key);
	if (r < 0)
		return r;
	if (peek_past_space(m) != ':')
		return members_broken(m, "':' is missing");
	m->at++;
	*ret = key;
	return 1;
}

int members_next(struct members *m, struct span *ret_key, struct span *ret_value)
{
	struct span key;
	int r = members_key(m, &key);

	if (r <= 0)
		return r;
	r = members_value(m, ret_value);
	if (r < 0)
		return r;
	*ret_key = key;
	return 1;
}

/* jansson's own texts quote the input as it is, so ours stand in for them. */
static int jansson_failed(struct members *m, const json_error_t *error)
{
	static const struct {
		enum json_error_code code;
		int r;
		const char *why;
	} codes[] = {
		{json_error_out_of_memory, -ENOMEM, "there is not enough memory"},
		{json_error_invalid_utf8, -EILSEQ, "it is not UTF-8"},
		{json_error_duplicate_key, -EEXIST, "a key is used twice"},
		{json_error_numeric_overflow, -ERANGE, "a number is too large"},
		{json_error_null_byte_in_key, -EBADMSG, "a key holds NUL"},
	};

	for (size_t i = 0; i < ARRAY_LEN(codes); i++)
		if (json_error_code(error) == codes[i].code) {
			m->why = codes[i].why;
			return codes[i].r;
		}
	return members_broken(m, "a value is not well formed");
}

int members_parse(struct members *m, struct span span, json_t **ret)
{
	json_error_t error;
	json_t *value;

	value = json_loadb(span.p, span.n,
			   JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
	if (!value) {
		m->at = (uint64_t)(span.p - m->text) +
			(error.position > 0 ? (uint64_t)error.position : 0);
		return jansson_failed(m, &error);
	}
	*ret = value;
	return 0;
}

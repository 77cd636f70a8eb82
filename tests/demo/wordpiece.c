/*
 * WordPiece
 *
 * One pass over the code points builds words; a finished word is matched against the vocabulary, a
 * hash table of slices of the vocabulary file.
 */
#include "tests/demo/wordpiece.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uchar.h>

#define WORD_CHARS_MAX 100 /* BERT's: a longer word is unknown */
#define NONE UINT32_MAX

struct piece {
	const char *text; /* into wordpiece::file, not terminated; NULL: a free place */
	uint32_t size;
	uint32_t id;
};

struct wordpiece {
	char *file;
	size_t file_size;
	struct piece *table;
	size_t mask; /* places in the table, less one */
	uint32_t unknown, begin, end;
};

/* --- Vocabulary -------------------------------------------------------------------------------- */

static uint64_t hash_bytes(const char *text, size_t size)
{
	uint64_t h = 0xcbf29ce484222325; /* FNV-1a */

	for (size_t i = 0; i < size; i++)
		h = (h ^ (unsigned char)text[i]) * 0x100000001b3;
	return h;
}

/* The place that holds the piece, or the free one where it belongs. */
static struct piece *find_place(const struct wordpiece *w, const char *text, size_t size)
{
	size_t i = hash_bytes(text, size) & w->mask;

	while (w->table[i].text &&
	       (w->table[i].size != size || memcmp(w->table[i].text, text, size) != 0))
		i = (i + 1) & w->mask;
	return &w->table[i];
}

static uint32_t find_id(const struct wordpiece *w, const char *text, size_t size)
{
	const struct piece *p = find_place(w, text, size);

	return p->text ? p->id : NONE;
}

static int read_file(const char *path, char **ret, size_t *ret_size)
{
	FILE *file = fopen(path, "re");
	char *text = NULL;
	size_t room = 0;
	ssize_t size;

	if (!file)
		return -errno;
	size = getdelim(&text, &room, '\0', file); /* all of it: a vocabulary holds no NUL */
	(void)fclose(file); /* nothing was written */
	if (size < 0) {
		free(text);
		return -EBADMSG;
	}
	*ret = text;
	*ret_size = (size_t)size;
	return 0;
}

static int index_lines(struct wordpiece *w)
{
	const char *end = w->file + w->file_size;
	size_t n_lines = 1, n_places = 1;
	uint32_t id = 0;

	for (const char *p = w->file; p < end; p++)
		n_lines += *p == '\n';
	while (n_places < 2 * n_lines)
		n_places *= 2;
	w->mask = n_places - 1;
	w->table = calloc(n_places, sizeof(*w->table));
	if (!w->table)
		return -ENOMEM;

	for (const char *p = w->file, *next; p < end; p = next + 1, id++) {
		next = memchr(p, '\n', (size_t)(end - p));
		if (!next)
			next = end;
		*find_place(w, p, (size_t)(next - p)) =
			(struct piece){.text = p, .size = (uint32_t)(next - p), .id = id};
	}
	return 0;
}

static int load(struct wordpiece *w, const char *path)
{
	int r;

	r = read_file(path, &w->file, &w->file_size);
	if (r < 0)
		return r;
	r = index_lines(w);
	if (r < 0)
		return r;
	w->unknown = find_id(w, "[UNK]", 5);
	w->begin = find_id(w, "[CLS]", 5);
	w->end = find_id(w, "[SEP]", 5);
	return w->unknown == NONE || w->begin == NONE || w->end == NONE ? -EBADMSG : 0;
}

int wordpiece_new(const char *path, struct wordpiece **ret)
{
	struct wordpiece *w = calloc(1, sizeof(*w));
	int r;

	if (!w)
		return -ENOMEM;
	r = load(w, path);
	if (r < 0) {
		wordpiece_free(w);
		return r;
	}
	*ret = w;
	return 0;
}

void wordpiece_free(struct wordpiece *w)
{
	if (!w)
		return;
	free(w->table);
	free(w->file);
	free(w);
}

/* --- Code points ------------------------------------------------------------------------------- */

struct range {
	char32_t first, last;
};

static bool in_ranges(char32_t c, const struct range *ranges, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (c >= ranges[i].first && c <= ranges[i].last)
			return true;
	return false;
}

#define IN(c, ...)                                                                                 \
	in_ranges(c, (const struct range[]){__VA_ARGS__},                                          \
		  sizeof((const struct range[]){__VA_ARGS__}) / sizeof(struct range))

static bool is_space(char32_t c)
{
	return IN(c, {'\t', '\n'}, {'\r', '\r'}, {' ', ' '}, {0xa0, 0xa0}, {0x1680, 0x1680},
		  {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f},
		  {0x3000, 0x3000});
}

/* Controls, format characters and combining accents leave no trace; neither does broken UTF-8. */
static bool is_dropped(char32_t c)
{
	return IN(c, {0, 0x1f}, {0x7f, 0x9f}, {0xad, 0xad}, {0x300, 0x36f}, {0x200b, 0x200f},
		  {0x202a, 0x202e}, {0x2060, 0x206f}, {0xfeff, 0xfeff}, {0xfffd, 0xfffd});
}

/* Words of their own: punctuation, ASCII's symbols among it, and CJK ideographs. */
static bool stands_alone(char32_t c)
{
	return IN(c, {'!', '/'}, {':', '@'}, {'[', '`'}, {'{', '~'}, {0xa1, 0xa1}, {0xa7, 0xa7},
		  {0xab, 0xab}, {0xb6, 0xb7}, {0xbb, 0xbb}, {0xbf, 0xbf}, {0x2010, 0x2027},
		  {0x2030, 0x2043}, {0x2045, 0x2051}, {0x2053, 0x205e}, {0x3001, 0x3003},
		  {0x3008, 0x3011}, {0x3014, 0x301f}, {0x3400, 0x4dbf}, {0x4e00, 0x9fff},
		  {0xf900, 0xfaff}, {0xff01, 0xff03}, {0xff05, 0xff0a}, {0xff0c, 0xff0f},
		  {0xff1a, 0xff1b}, {0xff1f, 0xff20}, {0xff3b, 0xff3d}, {0x20000, 0x2ceaf},
		  {0x2f800, 0x2fa1f});
}

/* Lower case without accents. */
static char32_t fold(char32_t c)
{
	static const char16_t latin[] = /* U+00C0 to U+017F */
		u"aaaaaaæceeeeiiiiðnooooo×øuuuuyþßaaaaaaæceeeeiiiiðnooooo÷øuuuuyþy"
		u"aaaaaaccccccccddđđeeeeeeeeeegggggggghhħħiiiiiiiiiıĳĳjjkkĸllllllŀ"
		u"ŀłłnnnnnnŉŋŋooooooœœrrrrrrssssssssttttŧŧuuuuuuuuuuuuwwyyyzzzzzzſ";

	if (c >= 'A' && c <= 'Z')
		return c - 'A' + 'a';
	if (c >= 0xc0 && c < 0x180)
		return latin[c - 0xc0];
	return c;
}

/* How many bytes follow the first one of a sequence; -1 when no sequence starts like this. */
static int n_following(unsigned char first)
{
	if (first < 0x80)
		return 0;
	if (first < 0xc2 || first > 0xf4)
		return -1;
	return first < 0xe0 ? 1 : first < 0xf0 ? 2 : 3;
}

/* Takes one code point off the text; U+FFFD for a byte that starts no valid sequence. */
static char32_t next_char(const char **text)
{
	static const char32_t smallest[] = {0, 0x80, 0x800, 0x10000};
	const unsigned char *p = (const unsigned char *)*text;
	int n = n_following(*p);
	char32_t c;

	(*text)++;
	if (n <= 0)
		return n < 0 ? 0xfffd : *p;
	c = *p & (0x3fu >> n);
	for (int i = 1; i <= n; i++) {
		if ((p[i] & 0xc0) != 0x80) /* also the end of the text */
			return 0xfffd;
		c = c << 6 | (p[i] & 0x3f);
	}
	if (c < smallest[n])
		return 0xfffd;
	*text += n;
	return c;
}

static size_t put_char(char32_t c, char *ret)
{
	static const unsigned char lead[] = {0, 0xc0, 0xe0, 0xf0};
	size_t n_more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;

	for (size_t i = n_more; i > 0; i--, c >>= 6)
		ret[i] = (char)(0x80 | (c & 0x3f));
	ret[0] = (char)(lead[n_more] | c);
	return n_more + 1;
}

/* --- Words to pieces --------------------------------------------------------------------------- */

/* The ids so far, and the word that is being read. */
struct encoder {
	const struct wordpiece *vocab;
	uint32_t *ids;
	size_t n_ids, max;
	size_t size, n_chars;
	char word[4 * WORD_CHARS_MAX];
};

static void put_id(struct encoder *e, uint32_t id)
{
	if (e->n_ids < e->max)
		e->ids[e->n_ids++] = id;
}

/* The longest piece that `text` starts with; `inner`: one that continues a word. */
static uint32_t longest_piece(const struct wordpiece *w, const char *text, size_t size, bool inner,
			      size_t *ret_size)
{
	char key[2 + 4 * WORD_CHARS_MAX] = "##";
	char *start = key + 2;

	memcpy(start, text, size);
	for (; size; size--) { /* a cut inside a character matches nothing */
		uint32_t id = find_id(w, inner ? key : start, size + (inner ? 2 : 0));

		if (id != NONE) {
			*ret_size = size;
			return id;
		}
	}
	return NONE;
}

static void put_word(struct encoder *e)
{
	const size_t n_before = e->n_ids;

	for (size_t at = 0, size = 0; at < e->size; at += size) {
		uint32_t id = NONE;

		if (e->n_chars <= WORD_CHARS_MAX)
			id = longest_piece(e->vocab, e->word + at, e->size - at, at > 0, &size);
		if (id == NONE) { /* then the whole word is unknown */
			e->n_ids = n_before;
			put_id(e, e->vocab->unknown);
			break;
		}
		put_id(e, id);
	}
	e->size = 0;
	e->n_chars = 0;
}

static void put_letter(struct encoder *e, char32_t c)
{
	if (++e->n_chars <= WORD_CHARS_MAX)
		e->size += put_char(c, e->word + e->size);
}

size_t wordpiece_encode(const struct wordpiece *w, const char *text, size_t max, uint32_t *ret_ids)
{
	struct encoder e = {.vocab = w, .ids = ret_ids, .max = max - 1};

	put_id(&e, w->begin);
	while (*text) {
		char32_t c = next_char(&text);
		bool alone = stands_alone(c);

		if (alone || is_space(c))
			put_word(&e);
		if (is_space(c) || is_dropped(c))
			continue;
		put_letter(&e, fold(c));
		if (alone)
			put_word(&e);
	}
	put_word(&e);
	e.max = max;
	put_id(&e, w->end);
	return e.n_ids;
}

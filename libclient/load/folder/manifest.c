#include "libclient/load/folder/manifest.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "libclient/image/file.h"

#define MANIFEST_NAME "SHA256SUMS"
#define MANIFEST_MAX (16 * MIB) /* bytes: of some 100,000 files */
#define HEX_SIZE ((size_t)2 * SHA256_SIZE)

#define QUOTE_PATH(path) file_quote(&(struct quote){0}, path)

const char *sha256_text(const uint8_t hash[SHA256_SIZE], char ret[SHA256_TEXT_SIZE])
{
	for (size_t i = 0; i < SHA256_SIZE; i++)
		(void)snprintf(ret + 2 * i, 3, "%02x", hash[i]);
	return ret;
}

static int digit_of(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* True if `text` begins with the digits of a hash. */
static bool parse_hash(const char *text, size_t n, uint8_t ret[SHA256_SIZE])
{
	if (n < HEX_SIZE)
		return false;
	for (size_t i = 0; i < SHA256_SIZE; i++) {
		int high = digit_of(text[2 * i]), low = digit_of(text[2 * i + 1]);

		if (high < 0 || low < 0)
			return false;
		ret[i] = (uint8_t)(high << 4 | low);
	}
	return true;
}

/* --- SHA256SUMS --------------------------------------------------------------------------------- */

struct search {
	const char *manifest, *name;
	bool found;
	uint8_t *ret;
};

/* "HASH  NAME", or "HASH *NAME" of a file read as binary. */
static int search_line(struct search *q, const char *line, size_t n, size_t number,
		       struct sentence *s)
{
	uint8_t hash[SHA256_SIZE];
	const char *name = line + HEX_SIZE + 2;

	if (n > 0 && line[n - 1] == '\r')
		n--;
	if (n == 0)
		return 0;
	if (line[0] == '\\') /* of a name with escaped characters, which is another one */
		return 0;
	if (n <= HEX_SIZE + 2 || !parse_hash(line, n, hash) || line[HEX_SIZE] != ' ' ||
	    (line[HEX_SIZE + 1] != ' ' && line[HEX_SIZE + 1] != '*'))
		return sentence_set(s, -EBADMSG,
				    "line %zu of %s is not as sha256sum writes it: 64 hexadecimal "
				    "digits, two blanks, and a name",
				    number, QUOTE_PATH(q->manifest));
	n -= HEX_SIZE + 2;
	if (n > 2 && !memcmp(name, "./", 2)) {
		name += 2;
		n -= 2;
	}
	if (n != strlen(q->name) || memcmp(name, q->name, n) != 0)
		return 0;
	if (q->found && memcmp(hash, q->ret, SHA256_SIZE) != 0)
		return sentence_set(s, -EBADMSG, "%s has two different sums for %s",
				    QUOTE_PATH(q->manifest), QUOTE_PATH(q->name));
	memcpy(q->ret, hash, SHA256_SIZE);
	q->found = true;
	return 0;
}

static int search_text(struct search *q, const char *text, size_t size, struct sentence *s)
{
	size_t number = 1;
	int r = 0;

	for (const char *line = text, *end; r == 0 && line < text + size; line = end + 1) {
		end = memchr(line, '\n', (size_t)(text + size - line));
		if (!end)
			end = text + size;
		r = search_line(q, line, (size_t)(end - line), number++, s);
	}
	if (r == 0 && !q->found)
		r = sentence_set(s, -EBADMSG, "%s has no line for %s: add it, or load without",
				 QUOTE_PATH(q->manifest), QUOTE_PATH(q->name));
	return r;
}

static int search_manifest(struct search *q, struct sentence *s)
{
	cleanup(file_deinit) struct file f = FILE_INIT;
	cleanup(freep) char *text = NULL;
	int r = file_open(q->manifest, &f, s);

	if (r < 0)
		return r;
	if (f.is_directory || f.identity.size > MANIFEST_MAX)
		return sentence_set(s, -EBADMSG, "%s is %s", QUOTE_PATH(q->manifest),
				    f.is_directory ? "a directory" : "too long for a list of sums");
	text = malloc(f.identity.size + 1);
	if (!text)
		return sentence_set(s, -ENOMEM, "out of memory");
	r = file_read(&f, text, f.identity.size, 0, s);
	return r < 0 ? r : search_text(q, text, f.identity.size, s);
}

/* --- Hugging Face ------------------------------------------------------------------------------- */

/* True if the path leads to blobs/HASH. Small files have another hash there, which is shorter. */
static bool is_blob(const char *path, uint8_t ret[SHA256_SIZE])
{
	static const char folder[] = "/blobs/";
	cleanup(freep) char *real = realpath(path, NULL);
	size_t n = real ? strlen(real) : 0;
	const char *name;

	if (n < HEX_SIZE + strlen(folder))
		return false;
	name = real + n - HEX_SIZE;
	return !memcmp(name - strlen(folder), folder, strlen(folder)) &&
	       parse_hash(name, HEX_SIZE, ret);
}

/* --- Files -------------------------------------------------------------------------------------- */

int manifest_find(const char *path, uint8_t ret[SHA256_SIZE], enum manifest_kind *ret_kind,
		  struct sentence *s)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	cleanup(freep) char *manifest = NULL;
	int r;

	if (asprintf(&manifest, "%.*s" MANIFEST_NAME, (int)(name - path), path) < 0) {
		manifest = NULL;
		return sentence_set(s, -ENOMEM, "out of memory");
	}
	*ret_kind = MANIFEST_FILE;
	r = search_manifest(&(struct search){.manifest = manifest, .name = name, .ret = ret}, s);
	if (r != -ENOENT)
		return r;
	*ret_kind = MANIFEST_BLOB;
	return is_blob(path, ret)
		       ? 0
		       : sentence_set(s, -ENODATA,
				      "no SHA-256 is known for %s: there is no " MANIFEST_NAME
				      " beside it, and its path leads to no blob of a Hugging Face "
				      "cache; write one (sha256sum *.safetensors >" MANIFEST_NAME
				      "), or verify with xxh3",
				      QUOTE_PATH(path));
}

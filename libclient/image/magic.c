/*
 * Eight bytes of any file can be read as the size of a header, so for a file of another format the parser's number
 * helps nobody. The format of the file helps: a failed download, weights to be converted.
 */
#include "libclient/image/magic.h"

#include <stdint.h>
#include <string.h>

#include "ipc/base/num.h"
#include "ipc/base/utf8.h"

#define TEXT_MIN 4 /* shorter text is as likely the rest of something else */
#define TEXT_QUOTED 40

#define CONVERT "save its tensors as safetensors (safetensors.torch.save_file)"
#define UNPACK "unpack it and name the files in it"
#define DOWNLOAD "download the file again"

static const struct format {
	unsigned offset, size;
	const char *magic, *text;
} formats[] = {
	{0, 4, "PK\3\4", "a zip archive, as torch.save() and numpy.savez() write: " CONVERT},
	{0, 4, "PK\5\6", "an empty zip archive"},
	{0, 2, "\x80\2", "a pickle, as old versions of torch.save() write: " CONVERT},
	{0, 2, "\x80\3", "a pickle: " CONVERT},
	{0, 2, "\x80\4", "a pickle: " CONVERT},
	{0, 2, "\x80\5", "a pickle: " CONVERT},
	{0, 4, "GGUF", "a GGUF file of llama.cpp: name it by itself, X.gguf"},
	{0, 8, "\x89HDF\r\n\x1a\n", "an HDF5 file, as Keras writes: " CONVERT},
	{0, 6, "\x93NUMPY", "an array that numpy.save() wrote: " CONVERT},
	{0, 3, "\x1f\x8b\x08", "compressed by gzip: " UNPACK},
	{0, 3, "BZh", "compressed by bzip2: " UNPACK},
	{0, 6, "\xfd\x37zXZ\0", "compressed by xz: " UNPACK},
	{0, 4, "\x28\xb5\x2f\xfd", "compressed by zstd: " UNPACK},
	{0, 6, "7z\xbc\xaf\x27\x1c", "a 7z archive: " UNPACK},
	{257, 5, "ustar", "a tar archive: " UNPACK},
	{0, 16, "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", "full of zeros where it should begin: " DOWNLOAD},
	{0, 24, "version https://git-lfs.",
	 "a Git LFS pointer and not the file itself; run git lfs pull"},
};

static const struct {
	char first;
	const char *text;
} texts[] = {
	{'<', "HTML or XML, perhaps the error page of a server: " DOWNLOAD},
	{'{',
	 "JSON text: an index has to be called X.safetensors.index.json, and anything else is no weights"},
};

static bool is_space(uint32_t c)
{
	return c == ' ' || c == '\t' || c == '\n' || c == '\f' || c == '\r';
}

/* Text all through, a character that is cut at the end aside. */
static bool is_text(const char *p, size_t n)
{
	while (n > 0) {
		uint32_t c = 0;
		size_t size = utf8_decode((const unsigned char *)p, n, &c);

		if (size == 0)
			return n < 4 && (unsigned char)*p >= 0xc0;
		if (c < 0x20 && !is_space(c))
			return false;
		p += size;
		n -= size;
	}
	return true;
}

size_t magic_mark_size(const char *p, size_t n)
{
	return n >= 3 && !memcmp(p, "\xef\xbb\xbf", 3) ? 3 : 0;
}

static bool explain_text(const char *p, size_t n, struct sentence *ret)
{
	size_t n_mark = magic_mark_size(p, n), n_line;

	p += n_mark;
	n -= n_mark;
	while (n > 0 && is_space((unsigned char)*p)) {
		p++;
		n--;
	}
	if (n == 0 || !is_text(p, n))
		return false;
	for (size_t i = 0; i < ARRAY_LEN(texts); i++)
		if (*p == texts[i].first) {
			(void)sentence_set(ret, 0, "it is %s", texts[i].text);
			return true;
		}
	if (n < TEXT_MIN)
		return false;
	for (n_line = 0;
	     n_line < n && n_line < TEXT_QUOTED && p[n_line] != '\n' && p[n_line] != '\r';)
		n_line++;
	(void)sentence_set(ret, 0, "it is text that begins with %s: " DOWNLOAD,
			   quote_bytes(&(struct quote){0}, p, n_line));
	return true;
}

bool magic_explain(const char *start, size_t n, struct sentence *ret)
{
	for (size_t i = 0; i < ARRAY_LEN(formats); i++) {
		const struct format *f = &formats[i];

		if (n >= f->offset + f->size && !memcmp(start + f->offset, f->magic, f->size)) {
			(void)sentence_set(ret, 0, "it is %s", f->text);
			return true;
		}
	}
	return explain_text(start, n, ret);
}

bool magic_explain_file(const struct file *f, struct sentence *ret)
{
	struct sentence ignored; /* a read error has a sentence of the caller's already */
	size_t n = f->identity.size < MAGIC_SIZE ? (size_t)f->identity.size : MAGIC_SIZE;
	char start[MAGIC_SIZE];

	if (n == 0) {
		(void)sentence_set(ret, 0, "it is empty: " DOWNLOAD);
		return true;
	}
	return file_read(f, start, n, 0, &ignored) == 0 && magic_explain(start, n, ret);
}

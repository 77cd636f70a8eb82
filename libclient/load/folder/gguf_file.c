/*
 * Nothing in a header says how long it is: twice as many bytes are read until they suffice.
 */
#include "libclient/load/folder/gguf_file.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/num.h"
#include "libclient/load/folder/companion_name.h"

#define FIRST_SIZE (64 * KIB)

bool gguf_file_is(const struct file *f)
{
	char start[GGUF_MAGIC_SIZE];
	struct sentence ignored; /* another reader of the file reports it */

	return !f->is_directory && f->identity.size >= sizeof(start) &&
	       file_read(f, start, sizeof(start), 0, &ignored) == 0 &&
	       gguf_is_magic(start, sizeof(start));
}

static bool has_suffix(const char *name)
{
	const char *suffix = strrchr(name, '.');

	return suffix && !strcmp(suffix, ".gguf");
}

static int is_weights(const struct dirent *e)
{
	return e->d_name[0] != '.' && companion_is_weights(e->d_name);
}

int gguf_file_find(const char *directory, char **ret_name)
{
	struct dirent **entries = NULL;
	int n = scandir(directory, &entries, is_weights, alphasort), r = 0;

	if (n < 0)
		return -errno;
	if (n == 1 && has_suffix(entries[0]->d_name)) {
		*ret_name = strdup(entries[0]->d_name);
		r = *ret_name ? 1 : -ENOMEM;
	}
	for (int i = 0; i < n; i++)
		free(entries[i]);
	free(entries);
	return r;
}

/* Makes `size` bytes of the `had`. */
static int gguf_file_grow(const struct file *f, struct gguf_file *g, uint64_t had, uint64_t size,
			  struct sentence *s)
{
	char *header = realloc(g->header, size);

	if (!header)
		return sentence_set(s, -ENOMEM, "there is not enough memory for the header");
	g->header = header;
	return file_read(f, header + had, size - had, had, s);
}

/* Ends, since the parser wants no more than GGUF_HEADER_MAX bytes and no more than the file has. */
static int gguf_file_parse(const struct file *f, struct gguf_file *g, struct sentence *s)
{
	const uint64_t file_size = f->identity.size;
	uint64_t had = 0, size = FIRST_SIZE;
	int r = GGUF_MORE;

	for (; r == GGUF_MORE; size *= 2) {
		if (size > file_size)
			size = file_size;
		r = gguf_file_grow(f, g, had, size, s);
		if (r == 0)
			r = gguf_parse(g->header, size, file_size, &g->gguf, s);
		had = size;
	}
	return r;
}

int gguf_file_read(const struct file *f, struct gguf_file *ret, struct sentence *s)
{
	struct gguf_file g = {0};
	int r = gguf_file_parse(f, &g, s);

	if (r) {
		gguf_file_deinit(&g);
		return r < 0 ? r
			     : sentence_set(s, -EBADMSG, "%s cannot be loaded: %s",
					    file_quote(&(struct quote){0}, f->path), s->text);
	}
	*ret = g;
	return 0;
}

void gguf_file_deinit(struct gguf_file *g)
{
	gguf_deinit(&g->gguf);
	free(g->header);
	g->header = NULL;
}

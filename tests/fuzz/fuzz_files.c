/*
 * Any bytes as the files beside weights. An accepted set keeps its promises: no path leaves a directory or is a folder of
 * another, and the set can be written and parsed again; a refused one has a sentence that can be printed.
 */
#include <errno.h>
#include <string.h>

#include "libclient/image/file_path.h"
#include "libclient/image/files.h"
#include "tests/fuzz/fuzz.h"

static void check_sentence(const struct sentence *s)
{
	MUST(s->text[0] && memchr(s->text, '\0', sizeof(s->text)));
	for (const char *p = s->text; *p; p++)
		MUST((unsigned char)*p >= 0x20 && *p != 0x7f);
}

static void check_path(const char *path)
{
	MUST(*path && *path != '/' && !strstr(path, "//") && path[strlen(path) - 1] != '/');
	for (const char *p = path; p; p = strchr(p, '/')) {
		p += *p == '/';
		MUST(strcmp(p, "..") != 0 && strncmp(p, "../", 3) != 0);
		MUST(strcmp(p, ".") != 0 && strncmp(p, "./", 2) != 0);
	}
}

static void check_accepted(struct weightd_files *f, const uint8_t *data, size_t size)
{
	for (size_t i = 0; i < f->n; i++) {
		const struct files_entry *e = &f->entries[i];
		const uint8_t *at = e->data;

		check_path(e->path);
		MUST(at >= data && e->n_bytes <= size && at + e->n_bytes <= data + size);
		if (i == 0)
			continue;
		MUST(file_path_compare(e[-1].path, e[-1].path_size, e->path, e->path_size) < 0);
		MUST(strncmp(e->path, e[-1].path, e[-1].path_size) != 0 ||
		     e->path[e[-1].path_size] != '/');
	}
	check_path(files_weights(f));
}

/* Written anew, because of an attribute that comes and goes. */
static void check_copy(struct weightd_files *f)
{
	struct weightd_files *copy;
	const void *image;
	uint64_t size;
	int r = weightd_files_set_attribute(f, "fuzz", "x");

	MUST(r == 0 || r == -EFBIG);
	MUST(weightd_files_set_attribute(f, "fuzz", NULL) == 0);
	image = weightd_files_image(f, &size);
	MUST(image && weightd_files_parse(image, size, &copy) == 0);
	MUST(copy->n == f->n && copy->n_attributes == f->n_attributes && copy->n_bytes == f->n_bytes);
	for (size_t i = 0; i < f->n; i++) {
		MUST(!strcmp(copy->entries[i].path, f->entries[i].path));
		MUST(copy->entries[i].n_bytes == f->entries[i].n_bytes);
		MUST(!memcmp(copy->entries[i].data, f->entries[i].data, f->entries[i].n_bytes));
	}
	for (size_t i = 0; i < f->n_attributes; i++)
		MUST(!strcmp(copy->attributes[i].value, f->attributes[i].value));
	weightd_files_free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct weightd_files *f;
	struct sentence s = {0};
	int r;

	MUST(weightd_files_new(&f) == 0);
	r = files_parse(f, data, size, &s);
	if (r < 0) {
		MUST(r == -EBADMSG);
		check_sentence(&s);
	} else {
		check_accepted(f, data, size);
		check_copy(f);
	}
	weightd_files_free(f);
	return 0;
}

#include "libclient/image/file_path.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>

#include "ipc/layout.h"
#include "libclient/image/header.h"
#include "weightd.h"

/* Paths are names of tensors. */
static_assert(WEIGHTD_FILE_PATH_MAX == LAYOUT_NAME_MAX, "limits of paths are ABI");

/* Why the component cannot be part of a path; NULL: it can. */
static const char *component_fault(const char *p, size_t n)
{
	if (n == 0)
		return "a component is empty";
	if (n > NAME_MAX)
		return "a component has more than 255 bytes";
	if (p[0] == '.' && (n == 1 || (n == 2 && p[1] == '.')))
		return "a component is '.' or '..'";
	for (size_t i = 0; i < n; i++)
		if ((unsigned char)p[i] < 0x20 || p[i] == 0x7f)
			return "it has control characters";
	return NULL;
}

int file_path_check(const char *path, size_t size, struct sentence *s)
{
	const char *why = NULL;
	size_t n;

	if (!strcmp(path, IMAGE_METADATA_NAME))
		why = "it is reserved";
	else if (!layout_name_ok(path, size))
		why = "it is not 1 to 1024 bytes of UTF-8 without NUL";
	for (size_t at = 0; !why && at <= size; at += n + 1) {
		const char *slash = memchr(path + at, '/', size - at);

		n = slash ? (size_t)(slash - path) - at : size - at;
		why = component_fault(path + at, n);
	}
	if (!why)
		return 0;
	return sentence_set(s, -EINVAL, "%s cannot be the path of a file beside the weights: %s",
			    quote_bytes(&(struct quote){0}, path, size), why);
}

int file_path_compare(const char *a, size_t a_size, const char *b, size_t b_size)
{
	int r = memcmp(a, b, a_size < b_size ? a_size : b_size);

	if (r)
		return r;
	return a_size < b_size ? -1 : a_size > b_size;
}

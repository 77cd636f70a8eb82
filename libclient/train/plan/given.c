#include "libclient/train/plan/given.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "libclient/train/plan/sentence.h"

#define SIZE_LIMIT 65536 /* no struct of a later release is larger */

static size_t size_of(const void *given)
{
	size_t size;

	memcpy(&size, given, sizeof(size));
	return size;
}

static int check_size(size_t size, size_t min, const char *type)
{
	if (size >= min && size <= SIZE_LIMIT)
		return 0;
	return train_fail(-EINVAL,
			  "the size of %s was not set: it is %zu; set it (.size = sizeof(%s))",
			  type, size, type);
}

int given_copy(const void *given, size_t min, void *ret, size_t known, const char *type)
{
	const uint8_t *bytes = given;
	size_t size = size_of(given);
	int r = check_size(size, min, type);

	if (r < 0)
		return r;
	for (size_t i = known; i < size; i++)
		if (bytes[i])
			return train_fail(-E2BIG,
					  "%s has an option that this library, which is older, lacks",
					  type);
	memset(ret, 0, known);
	memcpy(ret, given, size < known ? size : known);
	return 0;
}

int given_return(void *ret, size_t min, const void *result, size_t known, const char *type)
{
	size_t size = size_of(ret);
	int r = check_size(size, min, type);

	if (r < 0)
		return r;
	memset(ret, 0, size);
	memcpy(ret, result, size < known ? size : known);
	memcpy(ret, &size, sizeof(size));
	return 0;
}

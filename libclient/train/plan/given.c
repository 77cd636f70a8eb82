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

int given_check(const void *given, size_t known, const char *type)
{
	const uint8_t *bytes = given;
	size_t size = size_of(given);

	if (size < known)
		return train_fail(-EINVAL, "the size of %s was not set: it is %zu, and not %zu",
				  type, size, known);
	if (size > SIZE_LIMIT)
		return train_fail(-EINVAL, "the size of %s was not set: it is %zu", type, size);
	for (size_t i = known; i < size; i++)
		if (bytes[i])
			return train_fail(-E2BIG,
					  "%s has an option that this library, which is older, lacks",
					  type);
	return 0;
}

int given_return(void *ret, void *result, size_t known, const char *type)
{
	size_t size = size_of(ret);

	if (size < known)
		return train_fail(-EINVAL, "the size of %s was not set: it is %zu, and not %zu",
				  type, size, known);
	memcpy(result, &size, sizeof(size));
	memcpy(ret, result, known);
	return 0;
}

/*
 * A site's number is its place in all tables together: the cookie of its probes.
 */
#include "bpf/probe/site.h"

#include <string.h>

#include "ipc/base/num.h"

const struct library *const libraries[] = {&library_cuda, &library_nccl, &library_verbs,
					   &library_weightd};
const size_t n_libraries = ARRAY_LEN(libraries);

const struct library *library_named(const char *name)
{
	for (size_t i = 0; i < n_libraries; i++) {
		const char *wanted = libraries[i]->name;

		if (libraries[i]->is_whole ? !strcmp(name, wanted)
					   : !strncmp(name, wanted, strlen(wanted)))
			return libraries[i];
	}
	return NULL;
}

uint16_t site_number(const struct library *library, size_t i)
{
	size_t number = i;

	for (size_t k = 0; libraries[k] != library; k++)
		number += libraries[k]->n_sites;
	return (uint16_t)number;
}

const struct site *site_numbered(size_t number)
{
	for (size_t k = 0; k < n_libraries; k++) {
		if (number < libraries[k]->n_sites)
			return &libraries[k]->sites[number];
		number -= libraries[k]->n_sites;
	}
	return NULL;
}

bool site_is_done(const struct site *site, const struct probe_call *c)
{
	int result = (int)c->result;

	if (site->result == RESULT_POINTER)
		return c->result != 0;
	return result == 0 || result == site->plan.also_done;
}

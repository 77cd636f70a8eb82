#include "bpf/programs.h"

#include <assert.h>
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <stddef.h>

#include "bpf/arrivals.h"
#include "bpf/passing.h"
#include "bpf/probes.h"
#include "bpf/tracer.h"
#include "bpf/usdt.h"
#include "ipc/base/num.h"

/* `size`: so much of it the kernel has written. */
static uint64_t misses_of(const struct bpf_prog_info *info, uint32_t size)
{
	return size < offsetof(struct bpf_prog_info, recursion_misses) +
				       sizeof(info->recursion_misses)
		       ? MISSES_UNKNOWN
		       : info->recursion_misses;
}

uint64_t program_misses(const struct bpf_program *program)
{
	struct bpf_prog_info info = {};
	uint32_t size = sizeof(info);

	if (bpf_obj_get_info_by_fd(bpf_program__fd(program), &info, &size) < 0)
		return MISSES_UNKNOWN;
	return misses_of(&info, size);
}

static size_t read_object(const struct bpf_object *object, struct program ret[PROGRAMS_MAX],
			  size_t n)
{
	struct bpf_program *program;

	bpf_object__for_each_program(program, object)
	{
		struct bpf_prog_info info = {};
		uint32_t size = sizeof(info);

		/* Those that this kernel has no place for are not loaded. */
		if (bpf_obj_get_info_by_fd(bpf_program__fd(program), &info, &size) < 0)
			continue;
		assert(n < PROGRAMS_MAX);
		ret[n++] = (struct program){.name = bpf_program__name(program),
					    .runs = info.run_cnt,
					    .ns = info.run_time_ns,
					    .misses = misses_of(&info, size)};
	}
	return n;
}

size_t programs_read(const struct tracer *t, struct program ret[PROGRAMS_MAX])
{
	const struct bpf_object *objects[] = {
		meter_object(t->meter),
		t->probes ? probes_object(t->probes) : NULL,
		t->probes ? usdt_object(probes_usdt(t->probes)) : NULL,
		t->probes ? arrivals_object(probes_arrivals(t->probes)) : NULL,
		t->passing ? passing_object(t->passing) : NULL,
	};
	size_t n = 0;

	for (size_t i = 0; i < ARRAY_LEN(objects); i++)
		if (objects[i])
			n = read_object(objects[i], ret, n);
	return n;
}

#include "bpf/base/programs.h"

#include <assert.h>
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stddef.h>
#include <string.h>

struct bpf_link *program_attach_to_map(const struct bpf_program *program, const struct bpf_map *map)
{
	union bpf_iter_link_info info = {.map.map_fd = (__u32)bpf_map__fd(map)};
	LIBBPF_OPTS(bpf_iter_attach_opts, options, .link_info = &info,
		    .link_info_len = sizeof(info));

	return bpf_program__attach_iter(program, &options);
}

struct task_info { /* union bpf_iter_link_info::task, of Linux 6.1 */
	uint32_t tid;
	uint32_t pid;
	uint32_t pid_fd;
};

struct bpf_link *program_attach_to_process(const struct bpf_program *program, pid_t pid)
{
	union {
		struct task_info task;
		union bpf_iter_link_info info;
	} filter = {.task.pid = (uint32_t)pid};
	LIBBPF_OPTS(bpf_iter_attach_opts, options, .link_info = &filter.info,
		    .link_info_len = sizeof(filter.info));

	return bpf_program__attach_iter(program, &options);
}

void program_link_freep(struct bpf_link **link)
{
	(void)bpf_link__destroy(*link);
}

int program_iterate(const struct bpf_link *link)
{
	int fd = bpf_iter_create(bpf_link__fd(link));

	return fd < 0 ? -errno : fd;
}

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

size_t programs_add(const struct bpf_object *object, struct program ret[PROGRAMS_MAX], size_t n)
{
	struct bpf_program *program;

	if (!object)
		return n;
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

void program_choose(struct bpf_object *object, const char *name)
{
	struct bpf_program *program;

	bpf_object__for_each_program(program, object)
	{
		(void)bpf_program__set_autoload(program, !strcmp(bpf_program__name(program), name));
	}
}

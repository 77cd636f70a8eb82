#include "tests/fake/record.h"

#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "tests/fake/state.h"

/* One write to the end of a file: lines of several threads are not mixed. */
static void record_line(const char *what, const struct recorded *r)
{
	char path[4096], line[128];
	int n, fd;

	if (!r->number)
		return;
	state_path("record", path, sizeof(path));
	n = snprintf(line, sizeof(line), "%s %u %s %d %zu\n", what, r->number, r->kind, r->gpu,
		     r->size);
	fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
	if (fd < 0 || write(fd, line, (size_t)n) != n)
		perror(path);
	if (fd >= 0)
		(void)close(fd);
}

void record_queue(struct recorded *r, const char *kind, int gpu, size_t size)
{
	static atomic_uint last;

	*r = (struct recorded){.kind = kind, .gpu = gpu, .size = size};
	if (!state_number("FAKE_CUDA_RECORD", 0))
		return;
	r->number = atomic_fetch_add(&last, 1) + 1;
	record_line("queue", r);
}

void record_pinned(size_t size)
{
	struct recorded r = {.number = 1, .kind = "host", .size = size};
	cpu_set_t cpus;

	if (!state_number("FAKE_CUDA_RECORD", 0))
		return;
	r.gpu = sched_getaffinity(0, sizeof(cpus), &cpus) < 0 ? -1 : CPU_COUNT(&cpus);
	record_line("pin", &r);
}

void record_begin(const struct recorded *r)
{
	record_line("begin", r);
}

void record_end(const struct recorded *r)
{
	record_line("end", r);
}

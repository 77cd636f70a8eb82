/*
 * Programs: how those that are loaded here are attached, and what the kernel counts of them
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define PROGRAMS_MAX 32

struct bpf_link;
struct bpf_map;
struct bpf_object;
struct bpf_program;

struct program {
	const char *name;
	/* Only runs while the kernel counted runs; it does not show when that was. */
	uint64_t runs;
	uint64_t ns; /* from their begin to their end: getting there is not in it */
	uint64_t misses; /* see below */
};

/* Loads no program of the object but this one. */
void program_choose(struct bpf_object *object, const char *name);
/* Iterators: over what is in a map, and over one process alone (Linux 6.1). NULL, and errno. */
struct bpf_link *program_attach_to_map(const struct bpf_program *program, const struct bpf_map *map);
struct bpf_link *program_attach_to_process(const struct bpf_program *program, pid_t pid);
void program_link_freep(struct bpf_link **link);
/* A descriptor to read an iterator from, or negative errno. */
int program_iterate(const struct bpf_link *link);

#define MISSES_UNKNOWN UINT64_MAX

/*
 * Returns how often the kernel left the program out because it would have interrupted itself on that processor.
 * MISSES_UNKNOWN: the kernel does not count that (before 5.12), or has not loaded the program.
 */
uint64_t program_misses(const struct bpf_program *program);
/* Adds those of an object that are loaded; NULL has none. Returns how many there are then. */
size_t programs_add(const struct bpf_object *object, struct program ret[PROGRAMS_MAX], size_t n);

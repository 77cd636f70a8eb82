/*
 * Sites: probed functions of a library, and what is reported of a call
 *
 * A library is one file, library-NAME.c, and a row in site.c. So is a program that is no library: it is found by its
 * whole name.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bpf/base/support.h"
#include "bpf/probe/gpu_handle.h"
#include "bpf/probe/probes.bpf.h"
#include "bpf/rdma/qp.h"

struct usdt;

/* State that calls leave for later calls, which refer to their events. */
struct site_state {
	struct gpu_handles exports; /* handles that processes made */
	struct gpu_handles allocations; /* how large each is */
	struct qps qps;
	struct usdt *usdt; /* weightd's own probes */
	uint64_t event; /* number of the event that is filled now */
};

enum result {
	RESULT_NUMBER, /* 0: success */
	RESULT_POINTER, /* NULL where it did not */
};

struct site {
	const char *function;
	const char *word; /* the word for it */
	struct plan plan;
	enum result result;
	/*
	 * Fills in the event, beside its process and time; NULL: nothing to add. False: the call is
	 * not reported.
	 */
	bool (*fill)(struct site_state *s, const struct probe_call *c, json_t *event);
};

struct library {
	const char *name; /* "libcuda.so." */
	bool is_whole; /* the name: otherwise a file's begins with it */
	const struct site *sites;
	size_t n_sites;
	/*
	 * Used instead if a program has probes of its own: returns how many it has, and a link;
	 * or negative errno and why.
	 */
	int (*attach)(struct site_state *s, int fd, int *ret_link_fd, char ret_why[WHY_SIZE]);
};

extern const struct library library_cuda, library_nccl, library_verbs, library_weightd;

extern const uint8_t nccl_type_sizes[TYPES_MAX];

extern const struct library *const libraries[];
extern const size_t n_libraries;

/* The library with files of that name, or NULL. */
const struct library *library_named(const char *name);
/* Numbers go through all sites of all libraries. */
uint16_t site_number(const struct library *library, size_t i);
/* NULL: there is none. */
const struct site *site_numbered(size_t number);
/* True if the call succeeded. */
bool site_is_done(const struct site *site, const struct probe_call *c);

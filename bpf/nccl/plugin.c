/*
 * libnccl-profiler-weightd.so, as NCCL loads it: a table for each version of its interface
 *
 * NCCL takes the newest that it supports. The plug-in is a guest in another program's trainer: it never ends it,
 * holds it up, or prints, and it trusts the arguments of NCCL and of another plug-in no further than it has to.
 */
#include <pthread.h>
#include <stdlib.h>

#include "bpf/nccl/abi.h"
#include "bpf/nccl/chained_plugin.h"
#include "bpf/nccl/comm.h"
#include "bpf/nccl/event.h"
#include "bpf/nccl/sender.h"
#include "bpf/nccl/slot.h"

#define NAME "weightd"

/* Protects the list of communicators, and the start and end of the sender. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool is_ready;

/* The lock may be another thread's, which the child does not have. */
static void on_fork_in_child(void)
{
	(void)pthread_mutex_init(&lock, NULL);
	sender_forget();
	comm_forget_all();
	slot_forget_all();
}

/* A mask that other plug-ins read as well. Its other bits are theirs. */
static int mask_asked(void)
{
	const char *mask = getenv("NCCL_PROFILE_EVENT_MASK");

	return mask ? (int)strtol(mask, NULL, 0) & (EVENTS_ASKED | EVENT_PROXY_OP | EVENT_PROXY_STEP)
		    : EVENTS_ASKED;
}

static void get_ready(void)
{
	if (is_ready)
		return;
	slot_forget_all();
	(void)pthread_atfork(NULL, NULL,
			     on_fork_in_child); /* without it the plug-in reports nothing in a child */
	event_set_mask(mask_asked());
	is_ready = true;
}

static int plugin_init(const struct comm_facts *f, void **ret_context, int *ret_mask, log_fn log)
{
	struct comm *c;

	if (!ret_context || !ret_mask)
		return ABI_OK;
	*ret_context = NULL;
	(void)pthread_mutex_lock(&lock);
	get_ready();
	c = comm_open(f, ret_context);
	if (c) {
		*ret_mask = mask_asked() & event_known_by(f->api);
		chained_plugin_init(c, f, ret_mask, log);
		(void)sender_start(); /* without it callbacks write records that are never read, and lost */
		sender_wake();
	}
	(void)pthread_mutex_unlock(&lock);
	return ABI_OK;
}

static int plugin_finalize(void *context)
{
	struct comm *c;

	(void)pthread_mutex_lock(&lock);
	c = comm_close(context);
	if (c)
		chained_plugin_finalize(c);
	if (c && comm_n_open() == 0)
		sender_stop();
	else
		sender_wake();
	(void)pthread_mutex_unlock(&lock);
	return ABI_OK;
}

/* NCCL unloads it, or the process ends, and a communicator is open still. */
__attribute__((destructor)) static void on_unload(void)
{
	(void)pthread_mutex_lock(&lock);
	sender_stop();
	(void)pthread_mutex_unlock(&lock);
}

static int init_of(int api, void **ret_context, uint64_t hash, int *ret_mask, const char *comm_name,
		   int n_nodes, int n_ranks, int rank, log_fn log)
{
	const struct comm_facts f = {.name = comm_name,
				     .hash = hash,
				     .rank = rank,
				     .n_ranks = n_ranks,
				     .n_nodes = n_nodes,
				     .api = api};

	return plugin_init(&f, ret_context, ret_mask, log);
}

static int start_of(int api, void *context, void **ret_handle, const struct descr *d)
{
	if (!ret_handle)
		return ABI_OK;
	*ret_handle = NULL;
	if (d)
		event_start(api, context, ret_handle, d);
	return ABI_OK;
}

static int stop_event(void *handle)
{
	event_stop(handle);
	return ABI_OK;
}

static int record_event_state(void *handle, int state, union state_args *args)
{
	event_record_state(handle, state, args);
	return ABI_OK;
}

static int init_v4(void **ret_context, int *ret_mask, const char *comm_name, uint64_t hash,
		   int n_nodes, int n_ranks, int rank, log_fn log)
{
	return init_of(4, ret_context, hash, ret_mask, comm_name, n_nodes, n_ranks, rank, log);
}

static int start_v4(void *context, void **ret_handle, struct descr *d)
{
	return start_of(4, context, ret_handle, d);
}

extern const struct api_v4 ncclProfiler_v4;
const struct api_v4 ncclProfiler_v4 = {
	NAME, init_v4, start_v4, stop_event, record_event_state, plugin_finalize};

#define TABLE(version)                                                                             \
	static int init_v##version(void **ret_context, uint64_t hash, int *ret_mask,               \
				   const char *comm_name, int n_nodes, int n_ranks, int rank,      \
				   log_fn log)                                                     \
	{                                                                                          \
		return init_of(version, ret_context, hash, ret_mask, comm_name, n_nodes, n_ranks,  \
			       rank, log);                                                         \
	}                                                                                          \
	static int start_v##version(void *context, void **ret_handle, struct descr *d)             \
	{                                                                                          \
		return start_of(version, context, ret_handle, d);                                  \
	}                                                                                          \
	extern const struct api ncclProfiler_v##version;                                           \
	const struct api ncclProfiler_v##version = {                                               \
		NAME,       init_v##version,    start_v##version,                                  \
		stop_event, record_event_state, plugin_finalize,                                   \
		{NULL}}

TABLE(5);
TABLE(6);
TABLE(7);

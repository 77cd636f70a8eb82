/*
 * Opened once, and loaded until the process ends: an event may be on its way into it.
 */
#include "bpf/nccl/chained_plugin.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bpf/nccl/event.h"
#include "bpf/nccl/slot.h"

#define PATH_SIZE 4096

/* Written with the lock, before any communicator has it. */
static struct chained_plugin {
	bool is_tried;
	int version; /* 0: there is none */
	const struct api *api; /* since v5 */
	const struct api_v4 *api_v4;
} chained_plugin;

static _Atomic int asked; /* the last mask that it gave: NCCL has one for all communicators, too */

static void chained_plugin_complain(log_fn log, const char *name, const char *why)
{
	if (log)
		log(LOG_WARN, LOG_INIT, __FILE__, __LINE__,
		    "weightd: the profiler plug-in '%s' (WEIGHTD_NCCL_PROFILER_NEXT) "
		    "cannot be loaded: %s",
		    name, why);
}

/* As NCCL looks for one: by its name as it is, then as a part of one. */
static void *open_library(const char *name, char *why, size_t why_size)
{
	void *lib = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	char path[PATH_SIZE];

	if (lib)
		return lib;
	(void)snprintf(why, why_size, "%s", dlerror());
	if (strchr(name, '/') ||
	    (size_t)snprintf(path, sizeof(path), "libnccl-profiler-%s.so", name) >= sizeof(path))
		return NULL;
	lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!lib)
		(void)snprintf(why, why_size, "%s", dlerror());
	return lib;
}

/* The library stays until the process ends: an event may be on its way into it. */
static void open_next(int api, log_fn log)
{
	const char *name = getenv("WEIGHTD_NCCL_PROFILER_NEXT");
	char why[512] = "", symbol[32];
	void *lib;

	chained_plugin.is_tried = true;
	if (!name || !*name)
		return;
	lib = open_library(name, why, sizeof(why));
	if (!lib) {
		chained_plugin_complain(log, name, why);
		return;
	}
	for (int version = api; version >= API_OLDEST && !chained_plugin.version; version--) {
		(void)snprintf(symbol, sizeof(symbol), "ncclProfiler_v%d", version);
		if (version == API_OLDEST)
			chained_plugin.api_v4 = dlsym(lib, symbol);
		else
			chained_plugin.api = dlsym(lib, symbol);
		if (chained_plugin.api || chained_plugin.api_v4)
			chained_plugin.version = version;
	}
	if (chained_plugin.version)
		return;
	(void)snprintf(why, sizeof(why), "it has no table from v%d to v%d", API_OLDEST, api);
	chained_plugin_complain(log, name, why);
	(void)dlclose(lib);
}

void chained_plugin_init(struct comm *c, const struct comm_facts *f, int *mask, log_fn log)
{
	void *context = NULL;
	int theirs = 0, r;

	if (!chained_plugin.is_tried)
		open_next(f->api, log);
	if (!chained_plugin.version)
		return;
	if (chained_plugin.version == API_OLDEST)
		r = chained_plugin.api_v4->init(&context, &theirs, f->name, f->hash, f->n_nodes,
						f->n_ranks, f->rank, log);
	else
		r = chained_plugin.api->init(&context, f->hash, &theirs, f->name, f->n_nodes,
					     f->n_ranks, f->rank, log);
	if (r != ABI_OK)
		return; /* NCCL would go on without it, too */
	atomic_store(&c->chained, context);
	atomic_store(&c->has_next, true);
	atomic_store(&asked, theirs);
	*mask |= theirs;
}

void chained_plugin_finalize(struct comm *c)
{
	void *context = atomic_load(&c->chained);

	if (!atomic_exchange(&c->has_next, false) || !context)
		return;
	if (chained_plugin.version == API_OLDEST)
		(void)chained_plugin.api_v4->finalize(context);
	else
		(void)chained_plugin.api->finalize(context);
}

/* True if NCCL itself would report the event to a plug-in of that version. */
static bool chained_plugin_wants(uint64_t type)
{
	return type <= (uint64_t)event_known_by(chained_plugin.version) &&
	       (event_implied_by(type) & atomic_load_explicit(&asked, memory_order_relaxed));
}

static void *translated(const void *handle)
{
	const struct slot *s = slot_find(handle);

	return s ? slot_get(s->chained) : NULL;
}

static size_t size_of(int api)
{
	static const size_t sizes[N_APIS] = {DESCR_SIZE_V4, DESCR_SIZE_V5, DESCR_SIZE_V6,
					     sizeof(struct descr)};

	return sizes[api - API_OLDEST];
}

/* A descriptor of NCCL's version as one of the next's; what is newer than that is behind it, and not looked at. */
static void descr_translate(int api, uint64_t type, const struct descr *from, struct descr *ret)
{
	memset(ret, 0, sizeof(*ret));
	memcpy(ret, from, size_of(api));
	ret->parent = translated(from->parent);
	if (api > API_OLDEST && type == EVENT_COLL)
		ret->coll.group = translated(from->coll.group);
	if (api > API_OLDEST && type == EVENT_P2P)
		ret->p2p.group = translated(from->p2p.group);
	if (chained_plugin.version > API_OLDEST)
		return;
	if (api > API_OLDEST && (type & (EVENT_COLL | EVENT_P2P)))
		ret->parent = type == EVENT_COLL ? ret->coll.group : ret->p2p.group;
	ret->type_v4 = (uint8_t)type;
}

void *chained_plugin_start(int api, uint32_t comm, const struct descr *d)
{
	uint64_t type = api == API_OLDEST ? d->type_v4 : d->type;
	void *context = comm == COMM_NONE
				? NULL
				: atomic_load_explicit(&comms[comm].chained, memory_order_relaxed);
	void *handle = NULL;
	struct descr theirs;

	if (comm == COMM_NONE || !atomic_load_explicit(&comms[comm].has_next, memory_order_acquire) ||
	    !chained_plugin_wants(type))
		return NULL;
	descr_translate(api, type, d, &theirs);
	if (chained_plugin.version == API_OLDEST)
		(void)chained_plugin.api_v4->start_event(context, &handle, &theirs);
	else
		(void)chained_plugin.api->start_event(context, &handle, &theirs);
	return handle;
}

void chained_plugin_stop(void *handle)
{
	if (!handle)
		return;
	if (chained_plugin.version == API_OLDEST)
		(void)chained_plugin.api_v4->stop_event(handle);
	else
		(void)chained_plugin.api->stop_event(handle);
}

void chained_plugin_record_state(void *handle, int state, union state_args *args)
{
	static const int last[N_APIS] = {STATE_LAST_V4, STATE_LAST_V5, STATE_LAST_V6, INT32_MAX};

	if (!handle || state > last[chained_plugin.version - API_OLDEST])
		return;
	if (chained_plugin.version == API_OLDEST)
		(void)chained_plugin.api_v4->record_event_state(handle, state, args);
	else
		(void)chained_plugin.api->record_event_state(handle, state, args);
}

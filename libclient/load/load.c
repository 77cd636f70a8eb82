/*
 * A load is a writer like any other: it plans, asks for memory, fills it and publishes. Whatever fails
 * before the publish frees the writer, and with it every trace of the load.
 */
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "ipc/dtype.h"
#include "libclient/connection/client.h"
#include "libclient/connection/connection.h"
#include "libclient/connection/release.h"
#include "libclient/connection/sentence.h"
#include "libclient/load/checksums.h"
#include "libclient/load/companions.h"
#include "libclient/load/copies.h"
#include "libclient/load/placement.h"
#include "libclient/load/plan.h"
#include "libclient/load/progress.h"
#include "libclient/load/provision.h"
#include "libclient/load/ranks.h"
#include "libclient/load/reader.h"
#include "libclient/load/selection.h"
#include "libclient/load/share.h"
#include "libclient/verified.h"
#include "libclient/writer.h"
#include "weightd.h"

CLEANUP_POINTER(struct weightd_writer, weightd_writer_free);

/* Callers built with an older header have a shorter struct, those with a newer one a longer one. */
static size_t smaller(size_t a, size_t b)
{
	return a < b ? a : b;
}

static int check_progress(struct progress *p, const char *phase, uint64_t total, struct sentence *s)
{
	int r = progress_report(p, phase, 0, total);

	return r < 0 ? progress_failed(p, s) : 0;
}

/* An older server refuses the layout, with a sentence about its bytes. */
static int check_types(const struct weightd *w, const struct plan *plan, struct sentence *s)
{
	struct weightd_tensor t = {.size = sizeof(t)};

	for (uint32_t i = 0; !w->has_images && weightd_layout_tensor(plan->layout, i, &t) == 0; i++)
		if (dtype_is_block((unsigned)t.dtype))
			return release_too_old(w, s, "have the types of GGUF");
	return 0;
}

/* A load without its writer yet. */
struct creation {
	const char *name;
	const struct plan *plan;
	struct placement placement;
	struct provision provision;
	struct sentence *s;
};

static void creation_deinit(struct creation *c)
{
	placement_deinit(&c->placement);
	provision_deinit(&c->provision);
}

static int creation_tick(void *userdata)
{
	struct creation *c = userdata;

	return provision_tick(&c->provision);
}

/* Fails where the bytes cannot be placed: before anything of the buffer changes. */
static int creation_adopt(void *userdata, const struct weightd_writer *wr)
{
	struct creation *c = userdata;

	placement_deinit(&c->placement);
	return placement_init(&c->placement, c->plan, wr, c->name, c->s);
}

/* True for a version that is the file, or has its data behind a header of another size. */
static bool is_original(const struct plan *plan, const struct weightd_writer *wr)
{
	uint8_t hash[HASH_SIZE];

	return wr->header && plan->original.layout &&
	       weightd_layout_hash(plan->original.layout, hash) == 0 &&
	       !memcmp(hash, wr->layout.header->hash, HASH_SIZE);
}

/* The plan with the places that its bytes have in the writer. */
static int creation_place(struct creation *c, const struct weightd_writer *wr,
			  const struct plan **ret)
{
	int r = 0;

	*ret = c->plan;
	if (is_original(c->plan, wr)) {
		placement_deinit(&c->placement);
		r = placement_init_original(&c->placement, c->plan, c->s);
	} else if (!writer_has_adopted(wr)) {
		return 0;
	}
	*ret = &c->placement.plan;
	return r;
}

/* Reads the files into the version, and checks what the options ask for. */
static int load_read(const struct plan *plan, struct weightd_writer *wr,
		     const struct copies *copies, const struct weightd_load_options *o,
		     struct checksums *sums, struct progress *progress,
		     struct weightd_load_result *result, struct sentence *s)
{
	struct sentence of_sums;
	int r = checksums_start(sums, plan, wr, s), r_sums;

	if (r == 0)
		r = reader_run(plan, wr, copies, o, progress, result, s);
	r_sums = checksums_finish(sums, r == 0, progress, &of_sums);
	if (r == 0 && r_sums < 0)
		return sentence_set(s, r_sums, "%s", of_sums.text);
	if (r == 0 && o->verify == WEIGHTD_VERIFY_XXH3)
		r = reader_compare(plan, wr, o, progress, s);
	return r;
}

/* Asks for the memory and fills it. 1: weightd was restarted before all of it was there, and the writer is lost. */
static int load_fill(struct weightd *w, const char *name, const struct plan *plan,
		     const struct weightd_load_options *o, struct checksums *sums,
		     struct progress *progress, struct weightd_load_result *result,
		     struct weightd_writer **ret, struct copies *ret_copies)
{
	cleanup(weightd_writer_freep) struct weightd_writer *wr = NULL;
	cleanup(copies_deinit) struct copies copies = {0};
	struct sentence *s = client_sentence(w);
	cleanup(creation_deinit) struct creation creation = {.name = name, .plan = plan, .s = s};
	const struct image_verbatim original = {
		.layout = plan->original.layout,
		.header = plan->original.header,
		.size = plan->original.header_size,
	};
	const struct writer_hooks hooks = {
		.tick = creation_tick,
		.adopt = creation_adopt,
		.userdata = &creation,
		.verbatim = original.layout ? &original : NULL,
		.is_early = true,
	};
	const struct writer_hooks copy_hooks = {.tick = creation_tick, .userdata = &creation};
	uint64_t start = num_now_ns();
	int r;

	provision_init(&creation.provision, w, progress, name, o->create ? o->create->device : NULL,
		       weightd_layout_n_bytes(plan->layout));
	r = check_progress(progress, "memory", creation.provision.total, s);
	if (r < 0)
		return r;
	r = writer_create(w, name, plan->layout, o->create, &hooks, &wr);
	if (r == 0)
		r = copies_create(&copies, wr, plan->layout, o, &copy_hooks);
	if (r == 0 && writer_is_provided(wr))
		r = provision_end(&creation.provision);
	if (r < 0)
		return progress->r ? progress_failed(progress, s) : r;
	result->memory_ns = num_now_ns() - start;
	r = creation_place(&creation, wr, &plan);
	if (r == 0)
		r = load_read(plan, wr, &copies, o, sums, progress, result, s);
	if (r < 0)
		return wr->lost && !writer_is_provided(wr) ? 1 : r;
	result->read_ns = num_now_ns() - start - result->memory_ns;
	*ret = take_ptr(wr);
	*ret_copies = copies;
	copies = (struct copies){0};
	return 0;
}

static int load_plan(struct weightd *w, const char *name, const struct plan *plan,
		     const struct companions *companions, const struct weightd_load_options *o,
		     struct checksums *sums, struct progress *progress,
		     struct weightd_load_result *result)
{
	cleanup(weightd_writer_freep) struct weightd_writer *wr = NULL;
	cleanup(copies_deinit) struct copies copies = {0};
	struct sentence *s = client_sentence(w);
	int r = check_types(w, plan, s);

	if (r < 0)
		return r;
	do
		r = load_fill(w, name, plan, o, sums, progress, result, &wr, &copies);
	while (r > 0);
	if (r == 0)
		r = companions_send(companions, wr, o->verify);
	if (r == 0)
		r = copies_send_companions(&copies, companions, o->verify);
	if (r < 0)
		return r;
	r = plan_check_unchanged(plan, s);
	if (r < 0)
		return r;
	r = check_progress(progress, "publish", plan->n_bytes, s);
	if (r < 0)
		return r;
	r = o->share ? share_publish(wr, &result->version) : 1;
	result->is_shared = r == 0;
	if (r > 0)
		r = weightd_writer_publish(wr, &result->version);
	if (r == 0)
		r = copies_publish(&copies, wr, o->ret_more_versions);
	if (r < 0)
		return r;
	result->n_bytes = plan->n_bytes;
	result->n_tensors = weightd_writer_n_tensors(wr);
	result->n_files = plan->n_files;
	result->verified = o->verify;
	memcpy(result->digest, writer_digest(wr), sizeof(result->digest));
	return 0;
}

/*
 * On a connection of its own, since giving up an unanswered request costs the connection, and with it
 * all leases of the caller's.
 */
static int load_alone(struct weightd *w, const char *name, const struct plan *plan,
		      const struct companions *companions, const struct weightd_load_options *o,
		      struct checksums *sums, struct progress *progress,
		      struct weightd_load_result *result)
{
	cleanup(client_unrefp) struct weightd *own = NULL;
	int r = connection_twin(w, &own);

	if (r < 0)
		return r;
	r = load_plan(own, name, plan, companions, o, sums, progress, result);
	if (r < 0)
		*client_sentence(w) = *client_sentence(own);
	return r;
}

/* Likewise for several ranks of tensor parallelism. */
static int load_ranks(struct weightd *w, const char *name, const struct plan *plan,
		      const char *const *paths, size_t n_paths, const struct weightd_load_options *o,
		      struct progress *progress, struct weightd_load_result *result)
{
	cleanup(client_unrefp) struct weightd *own = NULL;
	int r = connection_twin(w, &own);

	if (r < 0)
		return r;
	r = ranks_load(own, name, plan, paths, n_paths, o, progress, result);
	if (r < 0)
		*client_sentence(w) = *client_sentence(own);
	return r;
}

static void give_result(const struct weightd_load_result *result, struct weightd_load_result *ret)
{
	const size_t size = ret ? ret->size : 0;

	if (!ret)
		return;
	memcpy(ret, result, smaller(size, sizeof(*result)));
	ret->size = size;
}

int weightd_load(struct weightd *w, const char *name, const char *const *paths, size_t n_paths,
		 const struct weightd_load_options *options, struct weightd_load_result *ret)
{
	cleanup(plan_deinit) struct plan plan = {0};
	cleanup(companions_deinit) struct companions companions = {0};
	cleanup(checksums_deinit) struct checksums sums = {0};
	struct weightd_load_options o = {0};
	struct weightd_load_result result = {0};
	struct progress progress;
	uint64_t start = num_now_ns();
	int r;

	if (options) {
		r = client_copy_options(w, options, offsetof(struct weightd_load_options, n_threads),
					&o, sizeof(o));
		if (r < 0)
			return r;
	}
	if (!weightd_verify_name(o.verify))
		return sentence_set(client_sentence(w), -EINVAL, "unknown way to verify: %d",
				    (int)o.verify);
	progress = (struct progress){.fn = o.progress, .note = o.note, .userdata = o.userdata};
	progress_set_timeout(&progress, o.timeout_ms);
	r = copies_check(w, &o);
	if (r == 0)
		r = plan_make(paths, n_paths, &progress, &plan, client_sentence(w));
	if (r == 0 && o.n_tp_more_ranks) {
		r = load_ranks(w, name, &plan, paths, n_paths, &o, &progress, &result);
		if (r == 0)
			give_result(&result, ret);
		return r;
	}
	if (r == 0)
		r = selection_apply(&o, &plan, client_sentence(w));
	if (r == 0 && o.verify == WEIGHTD_VERIFY_SHA256)
		r = checksums_init(&sums, &plan, client_sentence(w));
	if (r < 0)
		return progress.r ? progress_failed(&progress, client_sentence(w)) : r;
	r = companions_init(&companions, w, &plan, paths, n_paths, &o);
	if (r < 0)
		return r;
	r = load_alone(w, name, &plan, &companions, &o, &sums, &progress, &result);
	if (r < 0)
		return r;
	result.elapsed_ns = num_now_ns() - start;
	give_result(&result, ret);
	return 0;
}

/*
 * Plans for callers: a load up to the request for memory. The layout is the one that creation.c would ask for first.
 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/layout.h"
#include "libclient/connection/client.h"
#include "libclient/image/header.h"
#include "libclient/image/packing.h"
#include "libclient/load/placement.h"
#include "libclient/load/plan.h"
#include "libclient/load/progress.h"
#include "libclient/load/selection.h"
#include "weightd.h"

struct weightd_load_plan {
	struct plan plan;
	struct placement placement; /* pieces of another form than the flat one */
	struct weightd_layout *packed; /* NULL: of another form */
	enum weightd_plan_form form;
	struct plan_file_sum {
		uint64_t n_bytes, n_ranges;
	} * files;
};

CLEANUP_POINTER(struct weightd_layout, weightd_layout_free);
CLEANUP_POINTER(struct weightd_load_plan, weightd_load_plan_free);

void weightd_load_plan_free(struct weightd_load_plan *p)
{
	if (!p)
		return;
	placement_deinit(&p->placement);
	weightd_layout_free(p->packed);
	plan_deinit(&p->plan);
	free(p->files);
	free(p);
}

static int out_of_memory(struct sentence *s)
{
	return sentence_set(s, -ENOMEM, "there is not enough memory for the plan");
}

/* The plan with the places of its form. */
static const struct plan *placed(const struct weightd_load_plan *p)
{
	return p->form == WEIGHTD_PLAN_FLAT ? &p->plan : &p->placement.plan;
}

/* --- Forms -------------------------------------------------------------------------------------- */

/* True if a new buffer with these options can have a file as its version. */
static bool may_be_image(const struct weightd_create_options *o)
{
	return !o->exclusive && !o->reusable && (!o->device || !strcmp(o->device, "host"));
}

static int open_image(const struct weightd_layout *l, void **ret_image, struct layout *ret)
{
	uint64_t size;
	int r = weightd_layout_image(l, ret_image, &size);

	return r < 0 ? r : layout_open(*ret_image, size, ret);
}

/* True if there is a header for that layout. */
static bool has_header(const struct layout *l)
{
	void *header = NULL;
	uint64_t size;
	int r = image_header_build(l, NULL, 0, &header, &size);

	free(header);
	return r == 0;
}

/* Places the plan in its layout without room between tensors, if a file can have that. */
static int place_packed(struct weightd_load_plan *p, struct sentence *s)
{
	cleanup(weightd_layout_freep) struct weightd_layout *packed = NULL;
	cleanup(freep) void *image = NULL, *packed_image = NULL;
	struct layout view, packed_view;
	int r = open_image(p->plan.layout, &image, &view);

	if (r == 0)
		r = packing_make(&view, &packed);
	if (r == 0)
		r = open_image(packed, &packed_image, &packed_view);
	if (r < 0)
		return sentence_set(s, r, "the layout cannot be made: %s", strerror(-r));
	if (!has_header(&packed_view))
		return 0;
	p->packed = take_ptr(packed);
	p->form = WEIGHTD_PLAN_PACKED;
	return placement_init_layout(&p->placement, &p->plan, &packed_view, s);
}

static int place(struct weightd_load_plan *p, const struct weightd_create_options *o,
		 struct sentence *s)
{
	p->form = WEIGHTD_PLAN_FLAT;
	if (!may_be_image(o))
		return 0;
	if (!p->plan.original.layout)
		return place_packed(p, s);
	p->form = WEIGHTD_PLAN_FILE;
	return placement_init_original(&p->placement, &p->plan, s);
}

static int sum_files(struct weightd_load_plan *p, struct sentence *s)
{
	const struct plan *plan = placed(p);

	p->files = calloc(plan->n_files + 1, sizeof(*p->files));
	if (!p->files)
		return out_of_memory(s);
	for (size_t i = 0; i < plan->n_pieces; i++) {
		const struct plan_piece *piece = &plan->pieces[i];
		struct plan_file_sum *sum = &p->files[piece->file];

		sum->n_bytes += piece->cut
					? cut_source_size(&plan->cuts[piece->cut - 1], piece->size)
					: piece->size;
		sum->n_ranges++;
	}
	return 0;
}

/* --- Plans -------------------------------------------------------------------------------------- */

static int copy_options(struct weightd *w, const struct weightd_load_options *options,
			struct weightd_load_options *ret, struct weightd_create_options *ret_create)
{
	int r = 0;

	if (options)
		r = client_copy_options(w, options, offsetof(struct weightd_load_options, n_threads),
					ret, sizeof(*ret));
	if (r == 0 && ret->create)
		r = client_copy_options(w, ret->create,
					offsetof(struct weightd_create_options, mode), ret_create,
					sizeof(*ret_create));
	return r;
}

int weightd_load_plan_new(struct weightd *w, const char *const *paths, size_t n_paths,
			  const struct weightd_load_options *options, struct weightd_load_plan **ret)
{
	cleanup(weightd_load_plan_freep) struct weightd_load_plan *p = calloc(1, sizeof(*p));
	struct sentence *s = client_sentence(w);
	struct weightd_create_options create = {0};
	struct weightd_load_options o = {0};
	struct progress progress;
	int r;

	if (!p)
		return out_of_memory(s);
	r = copy_options(w, options, &o, &create);
	if (r < 0)
		return r;
	progress = (struct progress){.fn = o.progress, .note = o.note, .userdata = o.userdata};
	r = plan_make(paths, n_paths, &progress, &p->plan, s);
	if (r == 0)
		r = selection_apply(&o, &p->plan, s);
	if (r == 0)
		r = place(p, &create, s);
	if (r == 0)
		r = sum_files(p, s);
	if (r == 0)
		r = plan_check_unchanged(&p->plan, s);
	if (r == 0)
		*ret = take_ptr(p);
	return r;
}

enum weightd_plan_form weightd_load_plan_form(const struct weightd_load_plan *p)
{
	return p->form;
}

const struct weightd_layout *weightd_load_plan_layout(const struct weightd_load_plan *p)
{
	const struct weightd_layout *layouts[] = {
		[WEIGHTD_PLAN_FILE] = p->plan.original.layout,
		[WEIGHTD_PLAN_PACKED] = p->packed,
		[WEIGHTD_PLAN_FLAT] = p->plan.layout,
	};

	return layouts[p->form];
}

/* Copies as much of an item as the caller's struct has, whose size is the first member of both. */
static int give(void *ret, size_t ret_size, void *item, size_t item_size, size_t least)
{
	size_t size = ret_size < item_size ? ret_size : item_size;

	if (size < least)
		return -EINVAL;
	*(size_t *)item = size;
	memcpy(ret, item, size);
	return 0;
}

int weightd_load_plan_file(const struct weightd_load_plan *p, uint64_t index,
			   struct weightd_plan_file *ret)
{
	struct weightd_plan_file file;

	if (index >= p->plan.n_files)
		return -ENOENT;
	file = (struct weightd_plan_file){
		.path = p->plan.files[index].file.path,
		.n_bytes = p->files[index].n_bytes,
		.n_ranges = p->files[index].n_ranges,
	};
	return give(ret, ret->size, &file, sizeof(file), sizeof(file));
}

int weightd_load_plan_range(const struct weightd_load_plan *p, uint64_t index,
			    struct weightd_plan_range *ret)
{
	const struct plan *plan = placed(p);
	struct weightd_plan_range range;

	if (index >= plan->n_pieces)
		return -ENOENT;
	range = (struct weightd_plan_range){
		.offset = plan->pieces[index].offset,
		.dest = plan->pieces[index].dest,
		.n_bytes = plan->pieces[index].size,
		.file = plan->pieces[index].file,
	};
	return give(ret, ret->size, &range, sizeof(range), sizeof(range));
}

#include "libclient/diff/side.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/buffer.h"
#include "libclient/load/selection.h"

#define QUOTE(text) quote_bytes(&(struct quote){0}, text, strlen(text))

static int out_of_memory(struct sentence *s)
{
	return sentence_set(s, -ENOMEM, "there is not enough memory for the comparison");
}

static int init_buffer(struct side *side)
{
	struct weightd_buffer *b = side->buffer;
	int r = b->is_mutable ? weightd_read_begin(b, &side->ticket) : 0;

	if (r < 0)
		return sentence_set(side->s, r, "'%s' on %s %s", b->name, b->device,
				    r == -ESTALE    ? "was removed"
				    : r == -EUCLEAN ? "is torn: update it again"
						    : "is being updated in place: compare it later");
	r = memory_check(&b->memory, side->s);
	if (r < 0)
		return sentence_set(side->s, r, "'%s' on %s cannot be read: %.300s", b->name,
				    b->device, side->s->text);
	return 0;
}

static int init_files(struct side *side, const char *path, const struct weightd_load_options *o)
{
	struct weightd_tensor t = {.size = sizeof(t)};
	struct progress progress = {0};
	int r = plan_make(&path, 1, &progress, &side->plan, side->s);

	if (r == 0 && o)
		r = selection_apply(o, &side->plan, side->s);
	if (r < 0)
		return r;
	for (uint32_t i = 0; r == 0 && weightd_layout_tensor(side->plan.layout, i, &t) == 0; i++)
		r = names_add(&side->names, t.name, strlen(t.name), i);
	return r < 0 ? out_of_memory(side->s) : 0;
}

int side_init(struct side *side, const struct weightd_diff_side *given,
	      const struct weightd_load_options *o, struct sentence *s)
{
	*side = (struct side){.buffer = given->buffer, .s = s};
	if (!given->buffer == !given->path)
		return sentence_set(s, -EINVAL,
				    "a side of a comparison is either a buffer or a path");
	return given->buffer ? init_buffer(side) : init_files(side, given->path, o);
}

void side_deinit(struct side *side)
{
	if (!side->buffer)
		plan_deinit(&side->plan);
	names_deinit(&side->names);
	free(side->chunk);
}

int side_tensor(const struct side *side, uint32_t index, struct weightd_tensor *ret)
{
	return side->buffer ? weightd_buffer_tensor(side->buffer, index, ret)
			    : weightd_layout_tensor(side->plan.layout, index, ret);
}

int side_find(const struct side *side, const char *name, struct weightd_tensor *ret)
{
	uint32_t index;

	if (side->buffer)
		return weightd_buffer_find(side->buffer, name, ret);
	if (!names_find(&side->names, name, strlen(name), &index))
		return -ENOENT;
	return weightd_layout_tensor(side->plan.layout, index, ret);
}

static int read_file(struct side *side, uint64_t offset, void *to, uint64_t n)
{
	const struct plan_piece *piece = &side->plan.pieces[plan_find_piece(&side->plan, offset)];

	return plan_read(&side->plan, piece, offset - piece->dest, n, to, side->s);
}

int side_read(struct side *side, const struct weightd_tensor *t, uint64_t offset, uint64_t n,
	      uint64_t chunk_size, const void **ret)
{
	struct weightd_buffer *b = side->buffer;
	int r;

	if (b && b->memory.location.memory == WIRE_MEMORY_HOST) {
		*ret = (const char *)b->memory.data + t->offset + offset;
		return 0;
	}
	if (!side->chunk)
		side->chunk = malloc(chunk_size);
	if (!side->chunk)
		return out_of_memory(side->s);
	r = b ? weightd_buffer_read(b, t->offset + offset, side->chunk, n)
	      : read_file(side, t->offset + offset, side->chunk, n);
	if (r == 0)
		*ret = side->chunk;
	else if (b)
		*side->s = *client_sentence(b->w);
	return r;
}

int side_check_unchanged(const struct side *side)
{
	const struct weightd_buffer *b = side->buffer;

	if (!b)
		return plan_check_unchanged(&side->plan, side->s);
	if (b->is_mutable && weightd_read_retry(b, side->ticket))
		return sentence_set(side->s, -EAGAIN,
				    "%s was updated in place during the comparison: compare it again",
				    QUOTE(b->name));
	return 0;
}

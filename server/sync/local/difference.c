#include "server/sync/local/difference.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "server/sync/base/json_fields.h"
#include "server/sync/base/preamble.h"

#define LAYOUT_SIZE_MAX ((uint64_t)1 << 30) /* weightd's own limit */
#define KIND_SIZE 128 /* a dtype and a shape; longer ones are cut */

CLEANUP_POINTER(struct weightd_layout, weightd_layout_free);

struct sides {
	const struct weightd_buffer *ours;
	const struct weightd_layout *theirs;
	const char *us, *them; /* names of the nodes */
};

/* "F32 [4, 5]" */
static const char *kind_of(const struct weightd_tensor *t, char buf[KIND_SIZE])
{
	int n = snprintf(buf, KIND_SIZE, "%s [", weightd_dtype_name(t->dtype));

	for (uint32_t i = 0; i < t->n_dims && n < KIND_SIZE; i++)
		n += snprintf(buf + n, KIND_SIZE - (size_t)n, "%s%" PRIu64, i ? ", " : "",
			      t->shape[i]);
	if (n < KIND_SIZE)
		(void)snprintf(buf + n, KIND_SIZE - (size_t)n, "]");
	return buf;
}

static bool has_tensor(const struct weightd_layout *l, const char *name)
{
	struct weightd_tensor t = {.size = sizeof(t)};

	for (uint32_t i = 0; weightd_layout_tensor(l, i, &t) == 0; i++)
		if (!strcmp(t.name, name))
			return true;
	return false;
}

/* Explains two tensors at the same index with different names; NULL: that side has no more. */
static void explain_names(const struct sides *s, const struct weightd_tensor *ours,
			  const struct weightd_tensor *theirs, char *ret, size_t size)
{
	struct weightd_tensor other = {.size = sizeof(other)};

	if (theirs && weightd_buffer_find(s->ours, theirs->name, &other) < 0)
		(void)snprintf(ret, size, "%s has a tensor '%.100s', and %s has none", s->them,
			       theirs->name, s->us);
	else if (ours && !has_tensor(s->theirs, ours->name))
		(void)snprintf(ret, size, "%s has a tensor '%.100s', and %s has none", s->us,
			       ours->name, s->them);
	else if (ours && theirs)
		(void)snprintf(ret, size,
			       "tensor %u is '%.100s' on %s, and '%.100s' on %s, in another order",
			       ours->index, ours->name, s->us, theirs->name, s->them);
}

static bool is_same_kind(const struct weightd_tensor *x, const struct weightd_tensor *y)
{
	return x->dtype == y->dtype && x->n_dims == y->n_dims &&
	       (!x->n_dims || !memcmp(x->shape, y->shape, x->n_dims * sizeof(*x->shape)));
}

/* Returns true if the tensors differ. */
static bool explain_tensor(const struct sides *s, const struct weightd_tensor *ours,
			   const struct weightd_tensor *theirs, char *ret, size_t size)
{
	char x[KIND_SIZE], y[KIND_SIZE];

	if (strcmp(ours->name, theirs->name) != 0)
		explain_names(s, ours, theirs, ret, size);
	else if (!is_same_kind(ours, theirs))
		(void)snprintf(ret, size, "tensor '%.100s' is %s on %s, and %s on %s", ours->name,
			       kind_of(ours, x), s->us, kind_of(theirs, y), s->them);
	else if (ours->tied_to != theirs->tied_to)
		(void)snprintf(ret, size,
			       "tensor '%.100s' shares its bytes with another one on %s alone",
			       ours->name, ours->tied_to == WEIGHTD_NOT_TIED ? s->them : s->us);
	else if (ours->offset != theirs->offset)
		(void)snprintf(ret, size,
			       "tensor '%.100s' begins at byte %" PRIu64 " on %s, and at %" PRIu64
			       " on %s",
			       ours->name, ours->offset, s->us, theirs->offset, s->them);
	else if (ours->role != theirs->role)
		(void)snprintf(ret, size, "tensor '%.100s' is a parameter on %s alone", ours->name,
			       ours->role == WEIGHTD_PARAM ? s->us : s->them);
	else if (strcmp(ours->unit, theirs->unit) != 0)
		(void)snprintf(ret, size,
			       "tensor '%.100s' belongs to '%.100s' on %s, and to '%.100s' on %s",
			       ours->name, ours->unit, s->us, theirs->unit, s->them);
	else
		return false;
	return true;
}

/* If all tensors are equal, only the alignment is left. */
static void explain_first(const struct sides *s, char *ret, size_t size)
{
	struct weightd_tensor ours = {.size = sizeof(ours)}, theirs = {.size = sizeof(theirs)};
	bool is_ours, is_theirs;

	for (uint32_t i = 0;; i++) {
		is_ours = weightd_buffer_tensor(s->ours, i, &ours) == 0;
		is_theirs = weightd_layout_tensor(s->theirs, i, &theirs) == 0;
		if (!is_ours || !is_theirs)
			break;
		if (explain_tensor(s, &ours, &theirs, ret, size))
			return;
	}
	if (is_ours || is_theirs)
		explain_names(s, is_ours ? &ours : NULL, is_theirs ? &theirs : NULL, ret, size);
	else
		(void)snprintf(ret, size, "their tensors are the same, and aligned otherwise");
}

static int read_sides(const struct json_packet *t, struct sides *ret)
{
	int r = field_string(t->message, "node", PREAMBLE_NAME_SIZE - 1, &ret->us);

	return r < 0 ? r : field_string(t->message, "other", PREAMBLE_NAME_SIZE - 1, &ret->them);
}

int difference_explain(const struct weightd_buffer *b, const struct json_packet *t, struct fault *f)
{
	cleanup(weightd_layout_freep) struct weightd_layout *theirs = NULL;
	cleanup(blob_deinit) struct blob image = {0};
	struct sides s = {.ours = b};
	char what[FAULT_WHY_SIZE - 2 * PREAMBLE_NAME_SIZE];
	int r;

	if (t->n_fds != 1 || read_sides(t, &s) < 0 ||
	    blob_map(t->fds[0], LAYOUT_SIZE_MAX, &image) < 0)
		return fault_set_message(f, t, "lacks names of nodes, or a sealed layout");
	r = weightd_layout_parse(image.data, image.size, &theirs);
	if (r < 0)
		return fault_set(f, r, "the layout of %s cannot be used: %s", s.them, strerror(-r));
	s.theirs = theirs;
	explain_first(&s, what, sizeof(what));
	return fault_set(f, -EPROTOTYPE, "%s", what);
}

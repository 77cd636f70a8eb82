/*
 * Selections
 *
 * The part of a checkpoint that a load takes, and its types: tensors by name, as they are or cast. A selection turns the
 * plan of whole files into the plan of this part.
 */
#pragma once

#include "libclient/connection/sentence.h"
#include "libclient/image/files.h"
#include "libclient/load/plan.h"
#include "weightd.h"

/*
 * Cuts the plan down to what the options select. A tied name whose tensor is left out gets the bytes. A plan that
 * nothing changes in stays as it is. -EINVAL: a pattern matches no tensor, or no tensor is left; -EOPNOTSUPP: GGUF, or a
 * type that cannot be cast; -ENOMEM. The plan is as it was then.
 */
int selection_apply(const struct weightd_load_options *o, struct plan *plan, struct sentence *s);

/* The same into `ret`, which borrows the files of `plan`, and stays valid as long. Freed by selection_part_deinit(). */
int selection_take(const struct weightd_load_options *o, const struct plan *plan, struct plan *ret,
		   struct sentence *s);
void selection_part_deinit(struct plan *p);

/* Sets the attributes of a version that describe the selection, and removes them where there is none. */
int selection_describe(const struct weightd_load_options *o, const char *tp_rules,
		       struct weightd_files *f, struct sentence *s);

/* True for the key of an attribute that selection_describe() sets or removes. */
bool selection_has_attribute(const char *key);

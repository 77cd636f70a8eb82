/*
 * Placements
 *
 * The places of a plan's bytes in a writer with another layout than the plan's: that of its buffer's newest version, or of
 * the file.
 */
#pragma once

#include "ipc/layout.h"
#include "libclient/connection/sentence.h"
#include "libclient/load/plan.h"
#include "libclient/writer.h"

struct placement {
	struct plan plan; /* the plan with pieces of its own; the rest of it is borrowed */
};

/*
 * Looks each tensor of the plan up in the layout of the writer, which has the same ones and no
 * memory yet. -EPROTOTYPE: that layout ties two names, and the files have different bytes for them.
 * `name` is the buffer's.
 */
int placement_init(struct placement *p, const struct plan *plan, const struct weightd_writer *wr,
		   const char *name, struct sentence *s);

/* The same in a layout that no writer has yet, with the tensors of the plan and its ties. */
int placement_init_layout(struct placement *p, const struct plan *plan, const struct layout *layout,
			  struct sentence *s);

/* The data of the plan's original as they are, with what stands between its tensors: for a writer with its layout. */
int placement_init_original(struct placement *p, const struct plan *plan, struct sentence *s);
void placement_deinit(struct placement *p); /* a zeroed one is fine */

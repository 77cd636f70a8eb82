/*
 * Admission
 *
 * Whether this node takes a version that a peer wants to bring.
 */
#pragma once

#include "server/sync/participant/contributor.h"

/*
 * The code of the refusal, with a sentence, or NULL. `*ret_replica`, which has to be NULL, is the buffer's replica once its
 * publisher is known to have signed the document. A sync that has to give way to this one has ended then; to a dry one
 * none has to.
 */
const char *admission_refusal(struct agent *a, unsigned peer, const struct document *d, bool is_dry,
			      struct replica **ret_replica, char why[WHY_SIZE]);

/* The same of a part in a version that is made together; the coordinator, a publisher, may be this node. */
const char *admission_refusal_of_contributor(struct agent *a, unsigned peer_or_self,
					     const struct invitation *i,
					     struct replica **ret_replica, char why[WHY_SIZE]);

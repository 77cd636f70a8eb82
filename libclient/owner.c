/*
 * A server that does not know owners in requests would ignore one, or close the connection. So none is sent to it.
 */
#include "libclient/owner.h"

#include <errno.h>

#include "libclient/connection/release.h"
#include "weightd.h"

int owner_check_server(struct weightd *w, const uint32_t *owner)
{
	int r;

	if (!owner)
		return 0;
	r = client_check_usable(w);
	if (r < 0 || w->has_owners)
		return r;
	return release_too_old(w, &w->sentence, "check the owner of a buffer");
}

int owner_again(struct weightd *w, struct client_call *call)
{
	(void)call;
	if (w->has_owners)
		return 0;
	return sentence_set(&w->sentence, -ECONNABORTED,
			    "weightd at %s was restarted as an earlier release, which cannot check the "
			    "owner of a buffer; try again with this release (%s)",
			    w->path, weightd_release());
}

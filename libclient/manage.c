/*
 * Operations on a buffer by its name, without attaching it.
 */
#include <errno.h>

#include "libclient/connection/call.h"
#include "libclient/target.h"
#include "weightd.h"

int weightd_drop(struct weightd *w, const char *name, const char *device, uint64_t version)
{
	struct client_call call = {
		.op = WIRE_DROP,
		.again = client_not_again,
		.subject = (void *)name,
	};
	struct wire_drop *drop = &call.request.drop;
	int r = client_put_target(w, name, device, drop->name, drop->device);

	if (r < 0)
		return r;
	drop->version = version;
	return client_call_run(w, &call);
}

int weightd_rollback(struct weightd *w, const char *name, const char *device, uint64_t version,
		     uint64_t *ret_version)
{
	struct client_call call = {.op = WIRE_ROLLBACK, .subject = (void *)name};
	struct wire_rollback *rollback = &call.request.rollback;
	int r = client_put_target(w, name, device, rollback->name, rollback->device);

	if (r < 0)
		return r;
	rollback->version = version;
	if (!version) /* asked twice it would go back by two */
		call.again = client_not_again;
	r = client_call_run(w, &call);
	if (r == 0 && ret_version)
		*ret_version = call.reply.rollback.version;
	return r;
}

/* One of the three: -1 leaves it. False when it is out of bounds. */
static bool put_access(struct wire_access *access, uint32_t flag, uint32_t *field, int64_t value,
		       int64_t max)
{
	if (value == -1)
		return true;
	if (value < 0 || value > max)
		return false;
	access->flags |= flag;
	*field = (uint32_t)value;
	return true;
}

int weightd_set_access(struct weightd *w, const char *name, const char *device, int64_t mode,
		       int64_t uid, int64_t gid)
{
	const int64_t id_max = UINT32_MAX - 1; /* the last one means none to the kernel */
	struct client_call call = {.op = WIRE_ACCESS};
	struct wire_access *access = &call.request.access;
	int r = client_put_target(w, name, device, access->name, access->device);

	if (r < 0)
		return r;
	if (!put_access(access, WIRE_ACCESS_MODE, &access->mode, mode, 0777) ||
	    !put_access(access, WIRE_ACCESS_UID, &access->uid, uid, id_max) ||
	    !put_access(access, WIRE_ACCESS_GID, &access->gid, gid, id_max))
		return sentence_set(&w->sentence, -EINVAL,
				    "a mode is 0 to 0777, a uid or gid 0 to 4294967294");
	return client_call_run(w, &call);
}

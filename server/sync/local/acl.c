#include "server/sync/local/acl.h"

#include <errno.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "server/sync/base/json_fields.h"

#define MODE_MAX 0666
#define ID_MAX (UINT32_MAX - 1) /* the last id means none */
#define NAME_MAX_LENGTH 196 /* a line of sync.conf */

CLEANUP_POINTER(struct weightd_list, weightd_list_free);

int acl_read(const struct json_packet *t, struct acl *ret, struct fault *f)
{
	const json_t *group = json_object_get(t->message, "unix_group");
	struct acl g = {-1, -1, NULL};
	uint64_t mode = 0, gid = 0;

	if (json_object_get(t->message, "mode")) {
		if (field_number(t->message, "mode", MODE_MAX, &mode) < 0)
			return fault_set_message(f, t, "contains an invalid mode");
		g.mode = (int64_t)mode;
	}
	if (group) {
		if (field_number(group, "gid", ID_MAX, &gid) < 0 ||
		    field_string(group, "name", NAME_MAX_LENGTH, &g.unix_group) < 0)
			return fault_set_message(f, t, "contains an invalid Unix group");
		g.gid = (int64_t)gid;
	}
	*ret = g;
	return 0;
}

static int acl_refused(const struct acl *g, const struct task *e, const struct target *target,
		       int r, struct fault *f)
{
	if (r != -EPERM)
		return fault_set_weightd(f, r, e->w);
	return fault_set(
		f, r,
		"'%s' is to belong to the Unix group '%s' on this node, by its sync.conf, and its "
		"agent may not give it that: %s; add the agent's user to the group (usermod -aG) "
		"and start the agent anew",
		target->buffer, g->unix_group, weightd_error(e->w));
}

static bool acl_differs(const struct acl *g, const struct weightd_buffer_info *b)
{
	return (g->mode >= 0 && g->mode != b->mode) || (g->gid >= 0 && g->gid != b->gid);
}

int acl_apply(const struct acl *g, const struct task *e, const struct target *target,
	      bool *ret_is_distrusted, struct fault *f)
{
	cleanup(weightd_list_freep) struct weightd_list *list = NULL;
	const struct weightd_buffer_info *b;
	char device[WEIGHTD_DEVICE_MAX + 1];
	int r;

	if (g->mode < 0 && g->gid < 0)
		return 0;
	r = weightd_device_name(e->w, target->device, device);
	if (r == 0)
		r = weightd_list(e->w, target->buffer, &list);
	if (r < 0)
		return fault_set_weightd(f, r, e->w);
	for (size_t i = 0; (b = weightd_list_buffer(list, i)); i++) {
		if (strcmp(b->device, device) != 0 || !acl_differs(g, b))
			continue;
		r = weightd_set_access(e->w, target->buffer, target->device, g->mode, -1, g->gid);
		if (r < 0)
			return acl_refused(g, e, target, r, f);
		*ret_is_distrusted = b->reusable;
	}
	return 0;
}

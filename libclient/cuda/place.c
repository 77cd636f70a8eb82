#include "libclient/cuda/place.h"

#include <errno.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"

int place_init(struct place *p, const struct cuda_driver *d, cu_device device, struct sentence *s)
{
	cu_context primary;
	cu_result result = d->primary_ctx_retain(&primary, device);

	if (result)
		return gpu_error(d, result, "the GPU cannot have a context", s);
	*p = (struct place){
		.driver = d,
		.device = device,
		.primary = primary,
		.owner = getpid(),
	};
	return 0;
}

void place_deinit(struct place *p)
{
	if (p->driver && p->owner == getpid())
		(void)p->driver->primary_ctx_release(p->device);
	*p = (struct place){0};
}

static int check_owner(const struct place *p, struct sentence *s)
{
	if (p->owner == getpid())
		return 0;
	return sentence_set(s, -ECHILD,
			    "GPU memory cannot be used in a process forked from the one that "
			    "mapped it; attach there before any use of CUDA, or spawn it");
}

/* NULL: none, or one of another GPU. */
static cu_context current_there(const struct place *p)
{
	cu_context current = NULL;
	cu_device device;

	if (p->driver->ctx_current(&current) || !current || p->driver->ctx_device(&device) ||
	    device != p->device)
		return NULL;
	return current;
}

static struct visit place_begin(const struct place *p, bool has_pushed)
{
	struct visit v = {.place = p, .has_pushed = has_pushed, .capture_mode = CU_CAPTURE_RELAXED};

	(void)p->driver->capture_mode(&v.capture_mode); /* it is exchanged, or stays what it is */
	return v;
}

int place_enter_primary(const struct place *p, struct visit *ret, struct sentence *s)
{
	cu_result result;
	int r = check_owner(p, s);

	if (r < 0)
		return r;
	result = p->driver->ctx_push(p->primary);
	if (result)
		return gpu_error(p->driver, result, "the context of the GPU cannot be used", s);
	*ret = place_begin(p, true);
	return 0;
}

int place_enter(const struct place *p, struct visit *ret, struct sentence *s)
{
	int r = check_owner(p, s);

	if (r < 0)
		return r;
	if (!current_there(p))
		return place_enter_primary(p, ret, s);
	*ret = place_begin(p, false);
	return 0;
}

void place_leave(struct visit *v)
{
	cu_context popped;

	if (!v->place)
		return;
	(void)v->place->driver->capture_mode(&v->capture_mode);
	if (v->has_pushed)
		(void)v->place->driver->ctx_pop(&popped);
	v->place = NULL;
}

int place_synchronize(const struct place *p, struct sentence *s)
{
	cleanup(place_leave) struct visit visit = {0};
	cu_result result = CU_OK;
	int r = check_owner(p, s);
	cu_context current;

	if (r < 0)
		return r;
	current = current_there(p);
	if (current && current != p->primary)
		result = p->driver->ctx_synchronize();
	if (result == CU_OK) {
		r = place_enter_primary(p, &visit, s);
		if (r < 0)
			return r;
		result = p->driver->ctx_synchronize();
	}
	return result ? gpu_error(p->driver, result, "work on the GPU has failed", s) : 0;
}

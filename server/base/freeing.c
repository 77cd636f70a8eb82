#include "server/base/freeing.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

void freeings_init(struct freeings *f)
{
	*f = (struct freeings){0};
	list_init(&f->begun);
	list_init(&f->waits);
	list_init(&f->ready);
}

static bool concerns(const struct freeing *freeing, uid_t uid, const char *device)
{
	return (uid == FREEING_BY_ALL || uid == freeing->uid) && !strcmp(device, freeing->device);
}

void freeing_begin(struct freeings *f, struct freeing *freeing, uid_t uid, const char *device)
{
	*freeing = (struct freeing){
		.freeings = f,
		.uid = uid,
		.serial = ++f->n_begun,
	};
	(void)snprintf(freeing->device, sizeof(freeing->device), "%s", device);
	list_append(&f->begun, &freeing->link);
}

void freeing_end(struct freeing *freeing)
{
	struct freeings *f = freeing->freeings;
	struct freeing_wait *wait, *tmp;

	if (!f)
		return;
	list_remove(&freeing->link);
	freeing->freeings = NULL;
	list_for_each_safe(wait, tmp, &f->waits, link) {
		if (wait->serial < freeing->serial || !concerns(freeing, wait->uid, wait->device) ||
		    --wait->n_left > 0)
			continue;
		list_remove(&wait->link);
		list_append(&f->ready, &wait->link);
	}
}

void freeings_wake(struct freeings *f)
{
	struct freeing_wait *wait;

	while ((wait = list_first(&f->ready, struct freeing_wait, link))) {
		void (*over)(struct freeing_wait *) = wait->over;

		(void)freeing_wait_stop(wait);
		over(wait);
	}
}

bool freeing_await(struct freeings *f, struct freeing_wait *wait, uid_t uid, const char *device,
		   void (*over)(struct freeing_wait *wait))
{
	const struct freeing *freeing;

	*wait = (struct freeing_wait){.uid = uid, .device = device, .serial = f->n_begun};
	list_for_each(freeing, &f->begun, link)
		wait->n_left += concerns(freeing, uid, device);
	if (!wait->n_left)
		return false;
	wait->over = over;
	list_append(&f->waits, &wait->link);
	return true;
}

bool freeing_wait_stop(struct freeing_wait *wait)
{
	if (!wait->over)
		return false;
	wait->over = NULL;
	list_remove(&wait->link);
	return true;
}

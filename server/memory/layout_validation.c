#include "server/memory/layout_validation.h"

#include <errno.h>
#include <stddef.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "server/base/threads/worker.h"
#include "server/memory/layout_window.h"
#include "server/state/cost.h"
#include "server/state/server.h"

void layout_validation_init(struct layout_validation *i)
{
	*i = (struct layout_validation){.fd = -1};
}

void layout_validation_deinit(struct layout_validation *i)
{
	layout_check_deinit(&i->check);
	if (!i->cost)
		return;
	i->cost->checking_bytes -= i->size;
	i->cost = cost_unref(i->cost);
}

/* Sealed, so that it cannot change under us. */
int layout_validation_open(struct layout_validation *i, struct server *server, uid_t uid, int fd)
{
	int r;

	if (!fd_is_sealed(fd) || fd_size(fd, &i->size) < 0 || i->size == 0 ||
	    i->size > LAYOUT_SIZE_MAX)
		return -EBADMSG;
	r = fd_reopen_readonly(fd, &i->fd);
	if (r < 0)
		return r;
	i->window = server->layout_window;
	i->cost = cost_ref(server, uid);
	i->cost->checking_bytes += i->size;
	return 0;
}

static int layout_validation_begin(struct layout_validation *i)
{
	int r = layout_check_init(&i->check, i->window->image, i->size);

	if (i->size > LAYOUT_WINDOW_SIZE) {
		i->check.touch = layout_window_touch;
		i->check.copy = layout_window_copy;
		i->check.touch_arg = i->window;
	}
	return r;
}

static int layout_validation_check(struct layout_validation *i)
{
	bool has_begun = i->check.leaves;
	int r;

	/* Or reading it would take memory of ours, and past a cgroup's limit the kernel kills. */
	if (!has_begun && !fd_is_written(i->fd, i->size)) {
		i->check.why = "it has holes";
		return -EBADMSG;
	}
	r = layout_window_map(i->window, i, i->fd, i->size);
	if (r < 0)
		return r;
	if (has_begun && r > 0)
		layout_check_move(&i->check, i->window->image);
	r = has_begun ? 0 : layout_validation_begin(i);
	return r < 0 ? r : layout_check_step(&i->check);
}

int layout_validation_step(struct layout_validation *i)
{
	int r = layout_validation_check(i);

	if (r > 0)
		return JOB_AGAIN;
	if (r == 0)
		i->header = *i->check.layout.header;
	layout_window_unmap(i->window, i);
	return r;
}

int layout_validation_cancel(struct layout_validation *i)
{
	layout_window_unmap(i->window, i);
	return -ECANCELED;
}

#include "server/buffers/head_waker.h"

#include "server/buffers/buffer.h"
#include "server/state/server.h"

static int head_waker_step(struct job *job)
{
	struct head_waker *waker = container_of(job, struct head_waker, job);

	head_wake(container_of(waker, struct buffer, waker)->head);
	return JOB_DONE;
}

static void head_waker_done(struct job *job, int r)
{
	struct head_waker *waker = container_of(job, struct head_waker, job);
	struct buffer *b = container_of(waker, struct buffer, waker);
	bool again = waker->again;

	(void)r; /* a failure to wake loses a hint */
	waker->running = false;
	waker->again = false;
	if (again)
		head_waker_wake(b);
	buffer_unref(b);
}

void head_waker_wake(struct buffer *b)
{
	if (b->waker.running) {
		b->waker.again = true;
		return;
	}
	b->waker.running = true;
	buffer_ref(b);
	worker_submit(&b->server->wake_worker, &b->waker.job, b->access.uid, head_waker_step,
		      head_waker_done);
}

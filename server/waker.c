#include "server/waker.h"

#include "server/buffer.h"
#include "server/server.h"

static int wake_step(struct job *job)
{
	struct wake *wake = container_of(job, struct wake, job);

	head_wake(container_of(wake, struct buffer, wake)->head);
	return JOB_DONE;
}

static void wake_done(struct job *job, int r)
{
	struct wake *wake = container_of(job, struct wake, job);
	struct buffer *b = container_of(wake, struct buffer, wake);
	bool again = wake->again;

	(void)r; /* a failure to wake loses a hint */
	wake->running = false;
	wake->again = false;
	if (again)
		wake_readers(b);
	buffer_unref(b);
}

void wake_readers(struct buffer *b)
{
	if (b->wake.running) {
		b->wake.again = true;
		return;
	}
	b->wake.running = true;
	buffer_ref(b);
	worker_submit(&b->server->waker, &b->wake.job, wake_step, wake_done);
}

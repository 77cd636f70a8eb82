/* Starts, answers, fails and ends tasks of all kinds. */
#include "server/sync/local/task.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "server/sync/base/json_fields.h"
#include "server/sync/local/base.h"
#include "server/sync/local/planner.h"

static int read_target(const struct json_packet *t, struct target *ret)
{
	int r = field_string_or_null(t->message, "socket", JSON_PACKET_SIZE_MAX, &ret->socket);

	if (r == 0)
		r = field_string(t->message, "buffer", WEIGHTD_NAME_MAX, &ret->buffer);
	if (r == 0)
		r = field_string(t->message, "device", WEIGHTD_DEVICE_MAX, &ret->device);
	return r;
}

bool target_is_host(const struct target *t)
{
	return !strcmp(t->device, "host");
}

int task_begin(struct task *e, const struct json_packet *t, struct target *ret, struct fault *f)
{
	if (read_target(t, ret) < 0)
		return fault_set_message(f, t, "lacks a buffer, a device or a socket");
	return task_connect(e, ret->socket, f);
}

int task_connect(struct task *e, const char *socket, struct fault *f)
{
	int r = weightd_new(&e->w);

	if (r < 0)
		return fault_set(f, r, "out of memory");
	r = weightd_connect(e->w, socket);
	if (r < 0) {
		(void)fault_set_weightd(f, r, e->w);
		f->code = "weightd"; /* a missing socket is no missing buffer */
	}
	return r;
}

void *task_data(const struct task *e)
{
	if (e->staging.data)
		return e->staging.data;
	return e->writer ? weightd_writer_data(e->writer, NULL)
			 : (void *)weightd_buffer_data(e->buffer, NULL);
}

int task_read(const struct task *e, uint64_t offset, void *to, uint64_t n)
{
	return e->writer ? weightd_writer_read(e->writer, offset, to, n)
			 : weightd_buffer_read(e->buffer, offset, to, n);
}

void task_end(struct task *e)
{
	e->base = base_free(e->base);
	e->planning = planning_free(e->planning);
	weightd_writer_free(e->writer);
	weightd_detach(e->buffer);
	weightd_close(e->w);
	staging_deinit(&e->staging);
	free(e->is_staged);
	blob_deinit(&e->leaves);
	*e = (struct task){.stage = STAGE_OVER, .staging = STAGING_NONE};
}

int task_send(json_t *message, const int *fds, unsigned n_fds, struct fault *f)
{
	cleanup(json_freep) json_t *m = message;
	int r = m ? json_packet_send_wait(JSON_PACKET_FD, m, fds, n_fds) : -ENOMEM;

	return r < 0 ? fault_set(f, r, "cannot answer weightd-sync: %s", strerror(-r)) : 0;
}

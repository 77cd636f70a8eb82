/*
 * The order of work. Streams are the caller's, of the context that is current or of the primary one; of a
 * mark made in one it is asked later whether the work before it has been done.
 */
#include "ipc/base/cleanup.h"
#include "libclient/cuda/cuda.h"

int cuda_synchronize(const struct memory *m, void *stream, struct sentence *s)
{
	const struct cuda_state *state = m->state;
	cleanup(place_leave) struct visit visit = {0};
	cu_result result;
	int r;

	if (stream == WEIGHTD_ALL_STREAMS)
		return place_synchronize(&state->place, s);
	r = place_enter(&state->place, &visit, s);
	if (r < 0)
		return r;
	result = state->place.driver->stream_synchronize(stream);
	return result ? gpu_error(state->place.driver, result, "the stream cannot be waited for", s)
		      : 0;
}

int cuda_mark(struct memory *m, void *stream, struct sentence *s)
{
	struct cuda_state *state = m->state;
	const struct cuda_driver *d = state->place.driver;
	cleanup(place_leave) struct visit visit = {0};
	int r = place_enter(&state->place, &visit, s);
	cu_result result;

	if (r < 0)
		return r;
	result = d->event_create(&state->mark, CU_EVENT_DISABLE_TIMING);
	if (result == CU_OK)
		result = d->event_record(state->mark, stream);
	return result ? gpu_error(d, result, "the stream cannot record an event", s) : 0;
}

bool cuda_has_passed(const struct memory *m, bool wait)
{
	const struct cuda_state *state = m->state;
	const struct cuda_driver *d = state->place.driver;
	cleanup(place_leave) struct visit visit = {0};
	struct sentence ignored;

	if (!state->mark || place_enter(&state->place, &visit, &ignored) < 0)
		return true;
	/* After a failure nothing runs any more. */
	return (wait ? d->event_synchronize(state->mark) : d->event_query(state->mark)) !=
	       CU_NOT_READY;
}

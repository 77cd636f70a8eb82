#include "server/sync/tally.h"

#include "server/sync/base/fields.h"

void tally_add(struct tally *t, uint64_t planned, const json_t *in)
{
	uint64_t bytes, kernel;

	t->planned += planned;
	if (!json_is_object(in) || field_number(in, "bytes", INT64_MAX, &bytes) < 0 ||
	    field_number(in, "kernel", INT64_MAX, &kernel) < 0)
		return;
	/* Others said so: they may say nonsense, which shows. */
	if (__builtin_add_overflow(t->bytes, bytes, &t->bytes) ||
	    __builtin_add_overflow(t->kernel, kernel, &t->kernel))
		t->bytes = t->kernel = 0;
}

void tally_show(const struct tally *t, json_t *row)
{
	json_object_set_new(row, "planned",
			    t->planned || !t->bytes ? json_integer((json_int_t)t->planned)
						    : json_null());
	json_object_set_new(row, "bytes", json_integer((json_int_t)t->bytes));
	json_object_set_new(row, "kernel", json_integer((json_int_t)t->kernel));
}

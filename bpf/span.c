/*
 * A client owns its spans. While one is open in any client, the tracer's timer runs.
 */
#include "bpf/span.h"

#include <stdlib.h>
#include <string.h>

#include "bpf/follow.h"
#include "bpf/metrics.h"
#include "bpf/rows.h"
#include "bpf/tracer.h"

struct span *span_new(struct client *c, const char *sync, uint64_t began_ns)
{
	struct span *span = calloc(1, sizeof(*span));

	if (!span)
		return NULL;
	(void)strcpy(span->sync, sync);
	span->began_ns = began_ns;
	list_append(&c->spans, &span->link);
	c->n_spans++;
	follow_span_begins(c, span);
	rows_count_spans(c->tracer, 1);
	c->tracer->metrics.begun_spans++;
	return span;
}

void span_free(struct client *c, struct span *span)
{
	follow_span_ends(c, span);
	metrics_on_span_end(&c->tracer->metrics, span);
	rows_count_spans(c->tracer, -1);
	list_remove(&span->link);
	c->n_spans--;
	free(span);
}

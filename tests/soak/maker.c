#include "tests/soak/maker.h"

#include <stdlib.h>

void maker_init(struct maker *m, const char *ledger)
{
	const uint64_t n = LEDGER_WORDS;

	m->ledger = ledger_open(ledger);
	if (weightd_new(&m->w) < 0 || weightd_layout_new(0, &m->layout) < 0 ||
	    weightd_layout_add(m->layout, "words", WEIGHTD_U64, 1, &n, WEIGHTD_PARAM, NULL) < 0)
		exit(EXIT_FAILURE);
	while (weightd_connect(m->w, NULL) < 0)
		;
}

int maker_publish(struct maker *m, const char *name, const struct weightd_create_options *options)
{
	uint64_t tag = atomic_fetch_add(&m->ledger->next_tag, 1) + 1;
	struct weightd_writer *writer;
	uint64_t version;
	int r = weightd_create(m->w, name, m->layout, options, &writer);

	if (r < 0)
		return r;
	ledger_fill(weightd_writer_data(writer, NULL), tag);
	r = weightd_writer_publish(writer, &version);
	if (r == 0)
		ledger_acknowledge(m->ledger, ledger_buffer(m->ledger, name), version, tag);
	weightd_writer_free(writer);
	return r;
}

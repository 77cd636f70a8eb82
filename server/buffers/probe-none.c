/* Without <sys/sdt.h> at build time: a tracer can never attach. */
#include "server/buffers/probe.h"

volatile unsigned short weightd_attach_semaphore;
volatile unsigned short weightd_detach_semaphore;
volatile unsigned short weightd_publish_semaphore;
volatile unsigned short weightd_flip_semaphore;
volatile unsigned short weightd_quiesce_semaphore;

void probe_attach(const struct lease *l)
{
	(void)l;
}

void probe_detach(const struct lease *l)
{
	(void)l;
}

void probe_publish(const struct version *v, uint64_t began_ns)
{
	(void)v;
	(void)began_ns;
}

void probe_flip(const struct buffer *b, uint64_t before)
{
	(void)b;
	(void)before;
}

void probe_quiesce(const struct writer *w, enum probe_phase phase, unsigned n_readers)
{
	(void)w;
	(void)phase;
	(void)n_readers;
}

#include "tests/soak/ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define STEP 0x9e3779b97f4a7c15u

struct ledger *ledger_open(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	struct ledger *l = MAP_FAILED;

	/* All holes but what is used. */
	if (fd >= 0 && ftruncate(fd, sizeof(*l)) == 0)
		l = mmap(NULL, sizeof(*l), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (l == MAP_FAILED) {
		(void)fprintf(stderr, "soak: %s: %s\n", path, strerror(errno));
		exit(EXIT_FAILURE);
	}
	(void)close(fd);
	return l;
}

struct ledger_buffer *ledger_buffer(struct ledger *l, const char *name)
{
	/* Found by a letter, without a lock: the holder of a lock could die. */
	struct ledger_buffer *b = &l->buffers[(unsigned char)name[0] % LEDGER_BUFFERS];

	(void)snprintf(b->name, sizeof(b->name), "%s", name);
	return b;
}

void ledger_fill(uint64_t *words, uint64_t tag)
{
	for (uint64_t i = 0; i < LEDGER_WORDS; i++)
		words[i] = tag + i * STEP;
}

uint64_t ledger_tag(const uint64_t *words)
{
	uint64_t tag = words[0], difference = 0;

	for (uint64_t i = 0; i < LEDGER_WORDS; i++)
		difference |= words[i] ^ (tag + i * STEP);
	return difference ? 0 : tag;
}

void ledger_fault(struct ledger *l, _Atomic uint64_t *counter, const char *fmt, ...)
{
	va_list args;

	atomic_fetch_add(counter, 1);
	if (atomic_exchange(&l->has_story, 1))
		return;
	va_start(args, fmt);
	(void)vsnprintf(l->story, sizeof(l->story), fmt, args);
	va_end(args);
}

void ledger_agree(struct ledger *l, struct ledger_buffer *b, uint64_t version, uint64_t tag)
{
	uint64_t known = 0;

	if (version >= LEDGER_VERSIONS) {
		ledger_fault(l, &l->n_errors, "the ledger is full");
		return;
	}
	if (!atomic_compare_exchange_strong(&b->tags[version], &known, tag) && known != tag)
		ledger_fault(l, &l->n_other, "%s@%llu was %llx and came back as %llx", b->name,
			     (unsigned long long)version, (unsigned long long)known,
			     (unsigned long long)tag);
}

void ledger_acknowledge(struct ledger *l, struct ledger_buffer *b, uint64_t version, uint64_t tag)
{
	uint64_t before = atomic_load(&b->acknowledged);

	ledger_agree(l, b, version, tag);
	if (version <= before)
		ledger_fault(l, &l->n_lost, "%s@%llu was published after %llu", b->name,
			     (unsigned long long)version, (unsigned long long)before);
	else
		atomic_store(&b->acknowledged, version); /* one writer at a time */
	atomic_fetch_add(&l->n_published, 1);
}

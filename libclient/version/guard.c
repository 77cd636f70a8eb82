/*
 * The handler runs in the thread that faulted, in the middle of any operation: it takes no lock, allocates nothing,
 * and calls no function that does. If another thread removes an entry meanwhile, the handler may fault again, and the
 * process dies without the sentence.
 */
#include "libclient/version/guard.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/libc.h"
#include "ipc/base/num.h"
#include "libclient/connection/sentence.h"

#define ENTRIES_MAX 4096 /* pages of it that were never written cost nothing */

static _Atomic(const struct guarded *) entries[ENTRIES_MAX]; /* any thread; NULL: free */
static atomic_uint next_entry; /* the search for a free entry begins here */
static struct sigaction before; /* action for the signal when the handler was installed */
static atomic_int said; /* one thread explains, once in a process; others wait for it */
static atomic_int passed_by; /* the last thread that passed a fault to `before` */

enum {
	SAID_NOTHING,
	SAYING,
	SAID
};

struct text {
	char bytes[1024];
	size_t size;
};

void guard_add(struct guarded *g, const char *name, const uint64_t *version,
	       const struct layout *layout, const struct memory *memory)
{
	unsigned at = atomic_load_explicit(&next_entry, memory_order_relaxed);

	*g = (struct guarded){name, version, layout, memory, 0};
	if (memory->device >= 0)
		return;
	for (unsigned i = 0; i < ENTRIES_MAX; i++, at++) {
		const struct guarded *none = NULL;

		/* A table that is full is only read: a failed exchange takes the line from other threads. */
		if (atomic_load_explicit(&entries[at % ENTRIES_MAX], memory_order_relaxed))
			continue;
		if (!atomic_compare_exchange_strong(&entries[at % ENTRIES_MAX], &none, g))
			continue;
		g->slot = at % ENTRIES_MAX + 1;
		atomic_store_explicit(&next_entry, at + 1, memory_order_relaxed);
		return;
	}
}

void guard_remove(struct guarded *g)
{
	if (!g->slot)
		return;
	atomic_store(&entries[g->slot - 1], NULL);
	atomic_store_explicit(&next_entry, g->slot - 1, memory_order_relaxed);
	g->slot = 0;
}

static void guard_put(struct text *t, const char *s)
{
	size_t n = strnlen(s, sizeof(t->bytes) - t->size);

	memcpy(t->bytes + t->size, s, n);
	t->size += n;
}

static void put_number(struct text *t, uint64_t n)
{
	char digits[24];
	size_t at = sizeof(digits) - 1;

	digits[at] = '\0';
	do
		digits[--at] = (char)('0' + n % 10);
	while ((n /= 10) > 0);
	guard_put(t, digits + at);
}

static void put_quoted(struct text *t, const char *name)
{
	struct quote q;

	guard_put(t, quote_bytes(&q, name, strlen(name)));
}

static const struct guarded *entry_at(uintptr_t address)
{
	for (unsigned i = 0; i < ENTRIES_MAX; i++) {
		const struct guarded *g = atomic_load(&entries[i]);

		/* Memory that a writer still writes is not in the way of a write. */
		if (g && (g->memory->access == MEMORY_READ || !g->memory->is_mapped) &&
		    address - (uintptr_t)g->memory->data < g->memory->size)
			return g;
	}
	return NULL;
}

/* NULL: between them. */
static const struct layout_tensor *tensor_at(const struct layout *l, uint64_t offset)
{
	for (uint32_t i = 0; i < l->header->n_tensors; i++) {
		const struct layout_tensor *t = &l->tensors[i];

		if (offset >= t->offset && offset - t->offset < t->n_bytes)
			return t;
	}
	return NULL;
}

static void put_place(struct text *t, const struct guarded *g, uint64_t offset)
{
	const struct layout_tensor *tensor = tensor_at(g->layout, offset);

	if (tensor) {
		guard_put(t, "byte ");
		put_number(t, offset - tensor->offset);
		guard_put(t, " of ");
		put_quoted(t, layout_tensor_name(g->layout, tensor));
	} else {
		guard_put(t, "a byte between the tensors");
	}
	guard_put(t, ", buffer ");
	put_quoted(t, g->name);
	guard_put(t, " version ");
	put_number(t, *g->version);
}

static void guard_explain(const struct guarded *g, uintptr_t address)
{
	struct text t = {.size = 0};
	ssize_t ignored; /* the process is about to die, with or without the sentence */

	guard_put(&t, "weightd: SIGSEGV at ");
	put_place(&t, g, address - (uintptr_t)g->memory->data);
	guard_put(&t,
		  g->memory->is_mapped
			  ? ", which is published, and cannot be changed: write to a copy, or to the next version\n"
			  : ", whose memory was released: reacquire it before use\n");
	ignored = write(STDERR_FILENO, t.bytes, t.size);
	(void)ignored;
}

/* Only the first thread explains; the process must not die by another one before that is done. */
static void explain_once(const struct guarded *g, uintptr_t address)
{
	int nothing = SAID_NOTHING;

	if (atomic_compare_exchange_strong(&said, &nothing, SAYING)) {
		guard_explain(g, address);
		atomic_store(&said, SAID);
	}
	while (atomic_load(&said) == SAYING)
		(void)sched_yield();
}

static void restore_default(void)
{
	const struct sigaction action = {.sa_handler = SIG_DFL};

	(void)sigaction(SIGSEGV, &action, NULL);
}

static void pass_on(int signo, siginfo_t *info, void *context)
{
	bool is_fault = info->si_code > 0;

	/* The handler after ours has called ours again. */
	if (!is_fault && atomic_load(&passed_by) == libc_gettid()) {
		restore_default();
		(void)raise(signo);
		return;
	}
	if (is_fault)
		atomic_store(&passed_by, libc_gettid());
	if (before.sa_flags & SA_SIGINFO) {
		before.sa_sigaction(signo, info, context);
	} else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
		before.sa_handler(signo);
	} else if (is_fault) {
		restore_default(); /* the instruction is tried again */
	} else if (before.sa_handler == SIG_DFL) {
		restore_default();
		(void)raise(signo);
	}
}

static void on_fault(int signo, siginfo_t *info, void *context)
{
	int error = errno;
	uintptr_t address = (uintptr_t)info->si_addr;
	const struct guarded *g = info->si_code > 0 ? entry_at(address) : NULL;

	if (g)
		explain_once(g, address);
	pass_on(signo, info, context);
	errno = error;
}

int weightd_guard(void)
{
	struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
	struct sigaction now;

	if (sigaction(SIGSEGV, NULL, &now) < 0)
		return -errno;
	if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_fault)
		return 0;
	before = now;
	action.sa_mask = now.sa_mask;
	return sigaction(SIGSEGV, &action, NULL) < 0 ? -errno : 0;
}

/*
 * The choice of kernels
 *
 * Made once: by the processor and the operating system, or by $WEIGHTD_TRAIN_ISA.
 */
#include "libclient/train/kernels/kernel.h"

#include <stdlib.h>
#include <string.h>

#include "libclient/train/kernels/isa.h"

struct row {
	const struct kernels *kernels;
	bool (*is_supported)(void);
};

static bool portable_is_supported(void)
{
	return true;
}

#ifdef __x86_64__
/* The compiler's tests cover the operating system, which has to save wide registers. */
static bool v4_is_supported(void)
{
	return __builtin_cpu_supports("x86-64-v4");
}

static bool v3_is_supported(void)
{
	return __builtin_cpu_supports("x86-64-v3");
}

static bool v2_is_supported(void)
{
	return __builtin_cpu_supports("x86-64-v2");
}
#endif

/* The fastest first. */
static const struct row rows[] = {
#ifdef __x86_64__
	{&kernels_v4, v4_is_supported},
	{&kernels_v3, v3_is_supported},
	{&kernels_v2, v2_is_supported},
#endif
	{&kernels_portable, portable_is_supported},
};

#define N_ROWS (sizeof(rows) / sizeof(*rows))

const struct kernels *kernels_find(const char *isa)
{
	for (size_t i = 0; i < N_ROWS; i++)
		if (!strcmp(rows[i].kernels->isa, isa))
			return rows[i].is_supported() ? rows[i].kernels : NULL;
	return NULL;
}

const struct kernels *kernels_at(size_t index)
{
	for (size_t i = 0; i < N_ROWS; i++)
		if (rows[i].is_supported() && index-- == 0)
			return rows[i].kernels;
	return NULL;
}

static const struct kernels *kernels_choose(void)
{
	const char *isa = secure_getenv("WEIGHTD_TRAIN_ISA");
	const struct kernels *chosen = isa ? kernels_find(isa) : NULL;

	return chosen ? chosen : kernels_at(0);
}

const struct kernels *kernels_get(void)
{
	/* Threads that come at once choose the same. */
	static const struct kernels *_Atomic kernels;

	if (!kernels)
		kernels = kernels_choose();
	return kernels;
}

void kernels_fence(void)
{
#ifdef __x86_64__
	__builtin_ia32_sfence();
#else
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

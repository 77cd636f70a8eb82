/*
 * The instruction set of the kernels, for people who compare measurements.
 */
#include "libclient/train/engine/isa.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "ipc/base/quote.h"
#include "libclient/train/kernels/kernel.h"
#include "libclient/train/plan/sentence.h"
#include "weightd-train.h"

const char *weightd_train_isa(void)
{
	return kernels_get()->isa;
}

int isa_check(void)
{
	const char *name = secure_getenv("WEIGHTD_TRAIN_ISA");
	const struct kernels *k;
	struct quote quote;
	char names[128] = "";

	if (!name || !*name || kernels_find(name))
		return 0;
	for (size_t i = 0, used = 0; (k = kernels_at(i)) && used < sizeof(names); i++)
		used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s", i ? ", " : "",
					 k->isa);
	return train_fail(-EINVAL, "$WEIGHTD_TRAIN_ISA is %s; this machine has %s",
			  quote_name(&quote, name), names);
}

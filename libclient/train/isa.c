/*
 * The instruction set of the kernels, for people who compare measurements.
 */
#include "libclient/train/kernels/kernel.h"
#include "weightd-train.h"

const char *weightd_train_isa(void)
{
	return kernels_get()->isa;
}

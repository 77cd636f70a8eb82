/*
 * The instruction set that the environment names
 */
#pragma once

/* -EINVAL with a sentence: $WEIGHTD_TRAIN_ISA is none that this machine has. */
int isa_check(void);

/*
 * The sentence of the calling thread's last failure
 */
#pragma once

/* Sets it, and returns `r`. */
__attribute__((format(printf, 2, 3))) int train_fail(int r, const char *fmt, ...);

/* -ENOMEM, with a sentence. */
int train_out_of_memory(void);

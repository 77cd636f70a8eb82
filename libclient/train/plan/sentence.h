/*
 * The sentence of the calling thread's last failure
 */
#pragma once

/* Sets it, and returns `r`. */
__attribute__((format(printf, 2, 3))) int train_fail(int r, const char *fmt, ...);

/* -ENOMEM, with a sentence. */
int train_out_of_memory(void);

/* A name in a sentence: in quotes, without characters that steer a terminal, cut where it is long. */
struct train_quote {
	char text[144];
};

/* Returns q->text. */
const char *train_quote(struct train_quote *q, const char *name);

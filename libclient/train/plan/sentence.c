/*
 * One sentence for each thread, overwritten by its next failure
 */
#include "libclient/train/plan/sentence.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "ipc/base/utf8.h"
#include "weightd-train.h"

#define SENTENCE_SIZE 1024

static _Thread_local char sentence[SENTENCE_SIZE];

int train_fail(int r, const char *fmt, ...)
{
	char text[SENTENCE_SIZE]; /* an argument may be the last sentence */
	va_list args;

	va_start(args, fmt);
	utf8_vformat(text, sizeof(text), fmt, args);
	va_end(args);
	memcpy(sentence, text, strlen(text) + 1);
	return r;
}

int train_out_of_memory(void)
{
	return train_fail(-ENOMEM, "there is not enough memory");
}

const char *weightd_train_error(void)
{
	return sentence;
}

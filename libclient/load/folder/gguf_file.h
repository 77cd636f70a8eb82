/*
 * GGUF files
 *
 * Reads as much of a file as its header takes.
 */
#pragma once

#include <stdbool.h>

#include "libclient/connection/sentence.h"
#include "libclient/image/file.h"
#include "libclient/image/gguf.h"

struct gguf_file {
	struct gguf gguf; /* names are in `header` */
	void *header; /* the file up to its data, and more */
};

/* True for a file that begins as GGUF does. No safetensors file does, since its header would have 13 GiB. */
bool gguf_file_is(const struct file *f);

/* 1: `directory` has one file of that suffix, and no weights under other names; 0: it has not. */
int gguf_file_find(const char *directory, char **ret_name);

/* A broken rule is -EBADMSG here; the sentence names the file. */
int gguf_file_read(const struct file *f, struct gguf_file *ret, struct sentence *s);
void gguf_file_deinit(struct gguf_file *g);

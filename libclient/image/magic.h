/*
 * Files of other formats
 *
 * Recognises, by its first bytes, a file that is neither safetensors nor an index, and describes the way out.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "libclient/connection/sentence.h"
#include "libclient/image/file.h"

#define MAGIC_SIZE 512 /* bytes that are looked at */

/* Sets the sentence about a file that begins with these bytes. False: an unknown format. */
bool magic_explain(const char *start, size_t n, struct sentence *ret);

/* Bytes of the byte-order mark that the text begins with, which some editors write; 0: there is none. */
size_t magic_mark_size(const char *p, size_t n);

/* Reads them. */
bool magic_explain_file(const struct file *f, struct sentence *ret);

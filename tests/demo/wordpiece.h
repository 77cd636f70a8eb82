/*
 * WordPiece: text to token ids, as BERT's uncased models expect them
 *
 * Lower case, accents stripped (Latin letters; other scripts pass as they are), punctuation and CJK
 * apart, then the longest pieces of the vocabulary first.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct wordpiece;

/* Reads vocab.txt: one piece per line, its id the line's number. -EBADMSG: not BERT's vocabulary. */
int wordpiece_new(const char *path, struct wordpiece **ret);
void wordpiece_free(struct wordpiece *w);

/* [CLS] pieces [SEP], cut to `max` ids (at least 2); returns how many there are. */
size_t wordpiece_encode(const struct wordpiece *w, const char *text, size_t max, uint32_t *ret_ids);

/*
 * JSON objects, member by member
 *
 * The header of a checkpoint is one object with a member for each tensor, hundreds of thousands of them. This walk
 * passes each key and each value to jansson separately: it needs the memory of one member, an error can name the
 * member, and names of members may contain NUL, which jansson refuses in keys.
 *
 * Together the walk and the parses accept exactly JSON, except that they refuse constructs on which readers of JSON
 * disagree: duplicate keys, integers past 2^63 - 1, negative zero, NUL in nested keys, and nesting of
 * MEMBERS_DEPTH_MAX or more (the limit of the reference implementation).
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define MEMBERS_DEPTH_MAX 128

struct span {
	const char *p;
	uint64_t n;
};

struct members {
	const char *text;
	uint64_t size;
	uint64_t at; /* offset of the next token; after an error, of the error */
	const char *why; /* static text, set with an error */
	bool begun;
};

/* Begins to walk the one object that `text` is, white space around it aside. */
void members_init(struct members *m, const char *text, uint64_t size);

/* 1 and the next member; 0 at the end of the text; -EBADMSG. */
int members_next(struct members *m, struct span *ret_key, struct span *ret_value);

/* The two halves of members_next(): the key, and the value behind it, which has to be stepped over before the next key. */
int members_key(struct members *m, struct span *ret);
int members_value(struct members *m, struct span *ret);

/*
 * Parses the value of a span of this walk. -EBADMSG: not JSON; -EILSEQ: not UTF-8; -EEXIST: a duplicate key; -ERANGE:
 * a number too large; -ENOMEM.
 */
int members_parse(struct members *m, struct span span, json_t **ret);

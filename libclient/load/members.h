/*
 * JSON objects, member by member
 *
 * The header of a checkpoint is one object with a member for each tensor, hundreds of thousands of them.
 * It is walked here, and jansson gets each key and each value by itself: memory is that of one member,
 * an error knows which, and the names of members may hold what jansson refuses in keys (NUL).
 *
 * Together the walk and the parses accept exactly JSON, except that they refuse what readers of JSON
 * disagree about: duplicate keys, integers past 2^63 - 1, negative zero, NUL in nested keys, and
 * nesting of MEMBERS_DEPTH_MAX or more (the limit of the reference implementation).
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
	uint64_t at; /* what comes next; after an error, where it is */
	const char *why; /* static text, set with an error */
	bool begun;
};

/* Begins to walk the one object that `text` is, white space around it aside. */
void members_init(struct members *m, const char *text, uint64_t size);

/* 1 and the next member; 0 at the end of the text; -EBADMSG. */
int members_next(struct members *m, struct span *ret_key, struct span *ret_value);

/*
 * The value of a span that came from this walk. -EBADMSG: not JSON; -EILSEQ: not UTF-8; -EEXIST: a key
 * stands twice; -ERANGE: a number too large; -ENOMEM.
 */
int members_parse(struct members *m, struct span span, json_t **ret);

/*
 * Eviction
 *
 * Ends versions that are only kept, to make room for what a user creates. Its own go first, oldest first. Those of
 * another user go only while that user is above its share, and as long as the creator stays within its own (share.h).
 * Spare slots go before versions, by the same rule. Nothing is ended unless all together makes enough room.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct buffer;
struct server;

struct eviction {
	struct server *server;
	uid_t uid; /* the creator */
	const char *device; /* room for bytes there; NULL: for descriptors in the store */
	uint64_t adds; /* needed, and not charged to the creator yet */
	const struct buffer *except; /* its versions stay; NULL: none */
	/* Set by the functions below. */
	uint64_t share; /* the same for each user */
	uint64_t holds; /* the creator holds that much, with `adds` */
	uint64_t withheld; /* kept versions that may not go for the creator */
};

/* How much of `enough` may be freed. */
uint64_t eviction_room(struct eviction *e, uint64_t enough);

/* Frees that much at least. False: it cannot, and nothing was ended. */
bool eviction_run(struct eviction *e, uint64_t missing);

/* Adds a sentence about what was withheld, which starts with "; ". Nothing was: an empty one. */
void eviction_explain(const struct eviction *e, char *text, size_t size);

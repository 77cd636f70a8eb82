/*
 * Listings
 *
 * What there is, in pages of records: as many as one packet has room for, and where to go on.
 */
#pragma once

struct session;
struct wire_list;

/* Answers the session's request. */
void listing_answer(struct session *s, const struct wire_list *list);

/* The memory of the server as a whole. */
void listing_stat(struct session *s);

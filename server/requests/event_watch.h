/*
 * Watches of events
 *
 * A session that asked for events receives those that it may see, a page at a time. Where there is none yet, its
 * request waits for the next one or for its timeout.
 */
#pragma once

struct session;
struct timer;
struct wire_events;

/* Answers the session's request, now or later. */
void event_watch_new(struct session *s, const struct wire_events *ask);

/* The session ends: it does not wait any more. */
void event_watch_forget(struct session *s);

/* Answers the sessions that wait for events that they may see. The function of events::tell. */
void event_watch_tell(struct timer *timer);

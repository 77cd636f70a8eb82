/*
 * The connections of a simulated world: each pair of nodes has one, which keeps messages in order, delays them, is cut, and
 * comes back. Where the world is to, messages go as the frames that real agents send each other.
 */
#pragma once

#include "sim.h"

enum sim_link_state {
	LINK_DOWN,
	LINK_UP,
	LINK_CUT_UP, /* and nobody has noticed */
	LINK_CUT,
};

struct sim_link {
	enum sim_link_state state;
	uint64_t generation; /* what was sent over an earlier one is lost */
	uint64_t last_ns[2]; /* when the last of what was sent arrives, each way */
};

void sim_links_init(struct sim *s);
void sim_links_deinit(struct sim *s);

bool sim_is_cut(const struct sim *s, unsigned i, unsigned j);
/* Both ends hear of it, a moment later, and connect again. */
void sim_link_drop(struct sim *s, unsigned i, unsigned j);
/* A node was born, or died. */
void sim_link_dial_all(struct sim *s, unsigned node);
void sim_link_drop_all(struct sim *s, unsigned node);

/* For struct env. */
unsigned sim_link_to(const struct sim_node *n, unsigned peer);
int sim_link_send(void *userdata, unsigned peer, const json_t *message);
int sim_link_send_blob(void *userdata, unsigned peer, const uint8_t hash[32], int fd, uint64_t size);

/* What happens. */
void sim_link_on_message(struct sim *s, struct event *e);
void sim_link_on_down(struct sim *s, const struct event *e);
void sim_link_on_dial(struct sim *s, const struct event *e);

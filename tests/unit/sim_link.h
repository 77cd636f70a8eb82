/*
 * The connections of a simulated world: each pair of nodes has one, which keeps messages in order,
 * delays them, breaks, and is restored. With sim_options::as_frames, messages are encoded as frames
 * of real agents.
 */
#pragma once

#include "sim.h"

enum sim_link_state {
	LINK_DOWN,
	LINK_UP,
	LINK_CUT_UP, /* undetected */
	LINK_CUT,
};

struct sim_link {
	enum sim_link_state state;
	uint64_t generation; /* messages of earlier generations are lost */
	uint64_t last_ns[2]; /* arrival of the last message, each way */
};

void sim_links_init(struct sim *s);
void sim_links_deinit(struct sim *s);

bool sim_is_cut(const struct sim *s, unsigned i, unsigned j);
/* Both ends detect it a moment later, and connect again. */
void sim_link_drop(struct sim *s, unsigned i, unsigned j);
/* A node was born, or died. */
void sim_link_dial_all(struct sim *s, unsigned node);
void sim_link_drop_all(struct sim *s, unsigned node);

/* Functions of struct env. */
unsigned sim_link_to(const struct sim_node *n, unsigned peer);
int sim_link_send(void *userdata, unsigned peer, const json_t *message);
int sim_link_send_blob(void *userdata, unsigned peer, const uint8_t hash[32], int fd, uint64_t size);

/* Events. */
void sim_link_on_message(struct sim *s, struct event *e);
void sim_link_on_down(struct sim *s, const struct event *e);
void sim_link_on_dial(struct sim *s, const struct event *e);

/*
 * What tests of what nodes make together have in common: a world in which all have something for it, what befalls them, and
 * what has to be true when it was made, or was not.
 */
#pragma once

#include "scene.h"
#include "sim_average.h"

/* Nodes 0 and 1 may coordinate, and each has a version of its own. */
struct sim *scene_world(unsigned n, enum policy policy);
/* Node 0 asks for an average. */
void scene_begin(struct sim *s, char ret_sync[SYNC_ID_SIZE]);
/* What each serves. */
void scene_note(const struct sim *s, uint64_t ret_had[]);

/* What befalls a node. */
enum blow {
	BLOW_KILL,
	BLOW_SILENCE, /* of the agent, while its kernel answers */
	BLOW_HANG, /* of all its jobs */
	BLOW_ENGINE, /* is killed */
	BLOW_SOURCE,
	BLOW_SINK,
	N_BLOWS,
};

extern const char *const BLOWS[];

struct loss {
	const char *type; /* of the message before which it happens, one to or from the victim if that is not node 0 */
	enum blow blow;
	unsigned victim;
	uint64_t at_ns; /* when it happened; 0: not yet */
};

/* For sim::on_message, with the loss for sim::userdata. */
bool strike_at(struct sim *s, unsigned from, unsigned to, const json_t *message);
void recover(struct sim *s, unsigned victim);

void assert_ends(struct sim *s, const char *outcome, uint64_t within);
void average_and_wait(struct sim *s, const char *outcome);
/* What these nodes had is what the mean that they serve is of; a bit for each. */
void assert_mean_of(struct sim *s, const uint64_t *had, unsigned nodes);
void assert_untouched(const struct sim *s, const uint64_t had[]);
void assert_converges(struct sim *s);
/* After whatever was: all train, and average. */
void assert_well(struct sim *s);

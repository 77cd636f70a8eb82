/*
 * All kinds of trouble at once in a simulated world, at random from a seed. SIM_FIRST=7 SIM_SEEDS=1
 * runs the seventh schedule.
 */
#pragma once

#include "sim.h"

/*
 * Plays one seed after the other, from the first: `n_seeds`, a third of them outside of make soak, unless SIM_SEEDS
 * is set. A failed test reports the seed as its scene.
 */
void sim_play(unsigned n_seeds, void (*play)(uint64_t seed));

/*
 * Runs `n_times` steps: trouble for a node, or a request by `ask` at node 0 or 1, which may be
 * dead.
 */
void sim_trouble(struct sim *s, unsigned n_times, void (*ask)(struct sim *s, unsigned node));
/* All nodes live, are well and reach each other. */
void sim_end_trouble(struct sim *s);

/*
 * All kinds of trouble at once in a simulated world, by chance, as a seed has it. SIM_FIRST=7 SIM_SEEDS=1 plays the seventh
 * schedule.
 */
#pragma once

#include "sim.h"

/* A seed after the other, from the first: so many if nothing else is asked for. It is the scene that a test tells. */
void sim_play(unsigned n_seeds, void (*play)(uint64_t seed));

/* So many times, something befalls a node, or `ask` has node 0 or 1, which may be dead, do something. */
void sim_trouble(struct sim *s, unsigned n_times, void (*ask)(struct sim *s, unsigned node));
/* All live, are well and reach each other. */
void sim_end_trouble(struct sim *s);

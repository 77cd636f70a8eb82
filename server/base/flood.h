/*
 * Floods
 *
 * Lines of the log that a client can cause at will: of each kind and user only FLOOD_MAX are logged in FLOOD_WINDOW_NS,
 * and then how many there were.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define FLOOD_MAX 20
#define FLOOD_WINDOW_NS 10000000000u

/* Zeros at first. */
struct flood {
	uint64_t since_ns;
	unsigned n;
};

/* True when one more line is to be logged. `what` are the others, for the log: "refusals". */
bool flood_admits(struct flood *f, const char *what);

/*
 * The setting of tests of pushes: a simulated world in which node 0 is the publisher, and
 * assertions after a push.
 */
#pragma once

#include "sim.h"

struct sim *push_world(unsigned n, enum policy policy);
void push_and_wait(struct sim *s, const char *outcome);
void assert_all_serve(struct sim *s, uint64_t content);

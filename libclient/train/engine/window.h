/*
 * Windows
 *
 * A job with two parts: CONTROL, the words in which ranks order their collectives and a stage for small ones, and WINDOW,
 * the ranges. Not resumed: after a death the words of the ranks do not fit each other, so that each later call fails.
 *
 * Barriers count from 1. A rank enters one by its word `entered`. Where each rank has a CPU, the others look at these
 * words; else the last rank to enter wakes all of them at once by `passed`, since a sleep for each word would cost more.
 */
#pragma once

#include <stdalign.h>

#include "libclient/train/engine/wait.h"
#include "libclient/train/kernels/kernel.h"
#include "weightd-train.h"

#define WINDOW_LINE 64
#define WINDOW_STAGE 65536 /* bytes of a rank in a small collective */

struct window_rank {
	struct control_word entered;
	_Atomic uint32_t was_opened; /* 1: a process was this rank */
	_Atomic uint32_t spins;
};

/* First 4096 bytes of CONTROL. */
struct window_head {
	_Atomic uint64_t step; /* barriers that rank 0 entered, for lists of jobs */
	struct control_word passed; /* where ranks do not spin: the newest barrier that all entered */
	alignas(WINDOW_LINE) _Atomic uint32_t n_rounds; /* of a profile, by rank 0 */
};

struct weightd_window {
	struct weightd_job *job; /* owned */
	uint32_t rank, n_ranks;
	uint64_t size, stride; /* bytes of a range, and from one to the next */
	uint8_t *control, *ranges;
	uint64_t control_size;
	bool *is_owner; /* false in a forked child, where neither words nor ranges are mapped */
	uint64_t epoch; /* barriers entered */
	int failure; /* of the collective that broke the window */
	struct wait_place place;
	const struct kernels *kernels;
};

struct window_head *window_head(const struct weightd_window *win);
uint8_t *window_range(const struct weightd_window *win, uint32_t rank);
/* Bytes that a rank hands over in barrier `epoch`: one half for even ones, one for odd ones. */
uint8_t *window_stage(const struct weightd_window *win, uint32_t rank, uint64_t epoch);

/* -ECHILD, or the failure that broke the window, with a sentence. */
int window_check(const struct weightd_window *win);

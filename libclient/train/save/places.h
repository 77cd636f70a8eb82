/*
 * Places: where this rank has the values of a checkpoint
 */
#pragma once

#include "libclient/train/plan/control.h"
#include "libclient/train/save/checkpoint.h"

struct weightd_train;

/*
 * The elements of a trained tensor whose parameters this rank writes, from its first one on; empty: begin == end. Where
 * plan_shards_params(), parameters are checkpoint_params instead.
 */
struct plan_interval places_params(const struct weightd_train *t,
				   const struct weightd_train_tensor *tensor);
/* PARAM of such an element, in this rank's copy. */
uint8_t *places_param(const struct weightd_train *t, const struct weightd_train_tensor *tensor,
		      uint64_t element);
/* Copies such elements to the other copies that this rank writes. */
void places_copy(const struct weightd_train *t, const struct weightd_train_tensor *tensor,
		 struct plan_interval part);
/* A place in a state, or in checkpoint_params, as plan_updates() of this rank has it. */
void *places_state(const struct weightd_train *t, const struct checkpoint_state *state, uint64_t at);

/* This rank's slot of a step, empty: the caller writes the state behind it. */
struct control_saved *places_slot(const struct weightd_train *t, uint64_t step);
/* Completes it, with the caller's buffers, as if this rank had handed over the step. */
void places_keep(const struct weightd_train *t, uint64_t step);

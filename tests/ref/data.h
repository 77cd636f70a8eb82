/*
 * Synthetic data
 *
 * Sample i of a seed is a pure function of both. Ranks take the samples of a batch in turns, hence the union of their
 * samples is the batch of a single process, and a batch is made of smaller ones by appending them.
 */
#pragma once

#include <stdint.h>

#include "tests/ref/model.h"

#define DATA_LENGTH_MAX 256

struct data {
	uint32_t tokens[DATA_LENGTH_MAX], targets[DATA_LENGTH_MAX];
};

void data_sample(const struct model_options *o, uint64_t seed, uint64_t index, struct data *ret);
/* Samples of a batch that a rank takes: rank, rank + n, ... */
uint32_t data_share(uint32_t batch, uint32_t rank, uint32_t n);

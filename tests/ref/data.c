#include "tests/ref/data.h"

/* A walk over the vocabulary with a rule that a model can learn, and noise that it cannot. */
void data_sample(const struct model_options *o, uint64_t seed, uint64_t index, struct data *ret)
{
	uint64_t state = seed * 0x9e3779b97f4a7c15u ^ (index + 1) * 0xd1342543de82ef95u;
	uint32_t token = (uint32_t)(model_random(&state) % o->vocab);

	for (uint32_t i = 0; i < o->length; i++) {
		uint32_t noise = model_random(&state) % 4 ? 0 : 1;

		ret->tokens[i] = token;
		token = (uint32_t)((3ull * token + 1 + noise) % o->vocab);
		ret->targets[i] = token % o->classes;
	}
}

uint32_t data_share(uint32_t batch, uint32_t rank, uint32_t n)
{
	return batch > rank ? (batch - rank + n - 1) / n : 0;
}

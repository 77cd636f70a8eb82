/* J.-P. Aumasson, D. J. Bernstein: SipHash, a fast short-input PRF, 2012. */
#include "bpf/hash.h"

#include <sys/random.h>

#include "ipc/base/num.h"

#define ROUNDS 2 /* of each word */
#define ROUNDS_AT_END 4

struct state {
	uint64_t v[4];
};

static uint64_t rotate(uint64_t x, unsigned n)
{
	return x << n | x >> (64 - n);
}

static void mix(struct state *s, unsigned n)
{
	uint64_t *v = s->v;

	while (n-- > 0) {
		v[0] += v[1];
		v[2] += v[3];
		v[1] = rotate(v[1], 13) ^ v[0];
		v[3] = rotate(v[3], 16) ^ v[2];
		v[0] = rotate(v[0], 32);
		v[2] += v[1];
		v[0] += v[3];
		v[1] = rotate(v[1], 17) ^ v[2];
		v[3] = rotate(v[3], 21) ^ v[0];
		v[2] = rotate(v[2], 32);
	}
}

static void take(struct state *s, uint64_t word)
{
	s->v[3] ^= word;
	mix(s, ROUNDS);
	s->v[0] ^= word;
}

/* So early that there are none yet, its own address and the time have to do. */
void hash_key_init(struct hash_key *key)
{
	if (getrandom(key, sizeof(*key), GRND_NONBLOCK) == sizeof(*key))
		return;
	key->words[0] = (uintptr_t)key;
	key->words[1] = num_now_ns();
}

uint64_t hash_words(const struct hash_key *key, const uint64_t words[], size_t n)
{
	struct state s = {{
		key->words[0] ^ 0x736f6d6570736575,
		key->words[1] ^ 0x646f72616e646f6d,
		key->words[0] ^ 0x6c7967656e657261,
		key->words[1] ^ 0x7465646279746573,
	}};

	for (size_t i = 0; i < n; i++)
		take(&s, words[i]);
	take(&s, (uint64_t)(n * sizeof(*words)) << 56);
	s.v[2] ^= 0xff;
	mix(&s, ROUNDS_AT_END);
	return s.v[0] ^ s.v[1] ^ s.v[2] ^ s.v[3];
}

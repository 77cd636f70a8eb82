/*
 * The digests of leaves, on a GPU
 *
 * XXH3-128 (seed 0, the default secret) of each 1 MiB leaf, after the specification in xxHash's doc folder;
 * what it computes is what ipc/digest.c does, so that nobody copies a model back to know whether it is whole.
 *
 * A leaf is a thread block's. Within 1 KiB, XXH3 only adds: four threads sum up a KiB, 64 KiB are summed at
 * a time, 16 bytes a load. Between the KiB it scrambles, which is sequential: eight threads do that, one a
 * lane, for what was summed while the others already sum on. That chain takes a fraction of the time that
 * a leaf's share of the memory's bandwidth allows, as long as a multiprocessor has several leaves.
 *
 * In the words that C and CUDA share, since the tests run this very file on the host. Whoever changes it
 * runs `make digest-kernel`: digest.fatbin and digest.ptx are what is built in.
 */

#ifdef __cplusplus
#define NAMED_AS_IN_C extern "C"
#else
#define NAMED_AS_IN_C
#endif

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#define LEAF_SIZE (1ull << 20)
#define BLOCK_SIZE 1024u /* between two scrambles */
#define STRIPE_SIZE 64u
#define STRIPES 16u /* in a block */
#define LANES 8u /* in a stripe */
#define THREADS 256u
#define BLOCKS (THREADS / 4) /* summed at a time */
#define IN_FLIGHT 8u /* loads of a thread */

#define P32_1 0x9E3779B1u
#define P32_2 0x85EBCA77u
#define P32_3 0xC2B2AE3Du
#define P64_1 0x9E3779B185EBCA87ull
#define P64_2 0xC2B2AE3D27D4EB4Full
#define P64_3 0x165667B19E3779F9ull
#define P64_4 0x85EBCA77C2B2AE63ull
#define P64_5 0x27D4EB2F165667C5ull
#define PMX_1 0x165667919E3779F9ull
#define PMX_2 0x9FB21C651E98DF25ull

#define SECRET_SIZE 192u

static __constant__ const u8 secret[SECRET_SIZE] = {
	0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad,
	0x1c, 0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3,
	0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc,
	0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6,
	0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65,
	0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19,
	0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9,
	0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31,
	0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb,
	0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb, 0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0,
	0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16, 0xbe, 0x58, 0x7d,
	0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f,
	0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

static __constant__ const u64 lanes_at_first[LANES] = {
	P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1,
};

struct u128 {
	u64 low, high;
};

/* The pointer may have any alignment. */
static __device__ u32 read32(const u8 *p)
{
	return p[0] | (u32)p[1] << 8 | (u32)p[2] << 16 | (u32)p[3] << 24;
}

static __device__ u64 read64(const u8 *p)
{
	return read32(p) | (u64)read32(p + 4) << 32;
}

static __device__ u32 swap32(u32 x)
{
	return x << 24 | (x << 8 & 0xff0000) | (x >> 8 & 0xff00) | x >> 24;
}

static __device__ u64 swap64(u64 x)
{
	return (u64)swap32((u32)x) << 32 | swap32((u32)(x >> 32));
}

static __device__ struct u128 multiply(u64 a, u64 b)
{
	struct u128 product = {a * b, __umul64hi(a, b)};

	return product;
}

static __device__ u64 fold(u64 a, u64 b)
{
	struct u128 product = multiply(a, b);

	return product.low ^ product.high;
}

static __device__ u64 avalanche(u64 x)
{
	x ^= x >> 37;
	x *= PMX_1;
	return x ^ x >> 32;
}

/* XXH64's, for the shortest. */
static __device__ u64 avalanche64(u64 x)
{
	x ^= x >> 33;
	x *= P64_2;
	x ^= x >> 29;
	x *= P64_3;
	return x ^ x >> 32;
}

static __device__ struct u128 hash_1_to_3(const u8 *p, u32 n)
{
	u32 low = (u32)p[0] << 16 | (u32)p[n >> 1] << 24 | p[n - 1] | n << 8;
	u32 high = swap32(low) << 13 | swap32(low) >> 19;
	struct u128 h = {
		avalanche64(low ^ (u64)(read32(secret) ^ read32(secret + 4))),
		avalanche64(high ^ (u64)(read32(secret + 8) ^ read32(secret + 12))),
	};

	return h;
}

static __device__ struct u128 hash_4_to_8(const u8 *p, u32 n)
{
	u64 input = read32(p) | (u64)read32(p + n - 4) << 32;
	struct u128 h = multiply(input ^ read64(secret + 16) ^ read64(secret + 24),
				 P64_1 + ((u64)n << 2));

	h.high += h.low << 1;
	h.low ^= h.high >> 3;
	h.low ^= h.low >> 35;
	h.low *= PMX_2;
	h.low ^= h.low >> 28;
	h.high = avalanche(h.high);
	return h;
}

static __device__ struct u128 hash_9_to_16(const u8 *p, u32 n)
{
	u64 low = read64(p), high = read64(p + n - 8);
	struct u128 m = multiply(low ^ high ^ read64(secret + 32) ^ read64(secret + 40), P64_1), h;

	m.low += (u64)(n - 1) << 54;
	high ^= read64(secret + 48) ^ read64(secret + 56);
	m.high += high + (high & 0xffffffff) * (P32_2 - 1);
	m.low ^= swap64(m.high);
	h = multiply(m.low, P64_2);
	h.high += m.high * P64_2;
	h.low = avalanche(h.low);
	h.high = avalanche(h.high);
	return h;
}

static __device__ void mix(struct u128 *acc, const u8 *a, const u8 *b, const u8 *key)
{
	acc->low += fold(read64(a) ^ read64(key), read64(a + 8) ^ read64(key + 8));
	acc->low ^= read64(b) + read64(b + 8);
	acc->high += fold(read64(b) ^ read64(key + 16), read64(b + 8) ^ read64(key + 24));
	acc->high ^= read64(a) + read64(a + 8);
}

static __device__ struct u128 hash_17_to_240(const u8 *p, u32 n)
{
	struct u128 acc = {n * P64_1, 0}, h;

	if (n <= 128) {
		for (u32 i = (n - 1) / 32 + 1; i-- > 0;)
			mix(&acc, p + 16 * i, p + n - 16 * (i + 1), secret + 32 * i);
	} else {
		for (u32 i = 0; i < 4; i++)
			mix(&acc, p + 32 * i, p + 32 * i + 16, secret + 32 * i);
		acc.low = avalanche(acc.low);
		acc.high = avalanche(acc.high);
		for (u32 i = 4; 32 * (i + 1) <= n; i++)
			mix(&acc, p + 32 * i, p + 32 * i + 16, secret + 3 + 32 * (i - 4));
		mix(&acc, p + n - 16, p + n - 32, secret + 136 - 17 - 16);
	}
	h.low = avalanche(acc.low + acc.high);
	h.high = 0 - avalanche(acc.low * P64_1 + acc.high * P64_4 + n * P64_2);
	return h;
}

static __device__ struct u128 hash_short(const u8 *p, u32 n)
{
	if (n <= 3)
		return hash_1_to_3(p, n);
	if (n <= 8)
		return hash_4_to_8(p, n);
	return n <= 16 ? hash_9_to_16(p, n) : hash_17_to_240(p, n);
}

/* Adds a stripe to two of its lanes, with their two keys. */
static __device__ ulonglong2 add(ulonglong2 sum, ulonglong2 data, const u64 *keys)
{
	u64 x = data.x ^ keys[0], y = data.y ^ keys[1];

	sum.x += data.y + (x & 0xffffffff) * (x >> 32);
	sum.y += data.x + (y & 0xffffffff) * (y >> 32);
	return sum;
}

/* And a block, whose stripes take the keys from one further on each. */
static __device__ ulonglong2 sum_block(const ulonglong2 *block, u32 n_stripes, const u64 *keys)
{
	ulonglong2 sum = {0, 0}, data[IN_FLIGHT];

	if (n_stripes < STRIPES) {
		for (u32 i = 0; i < n_stripes; i++)
			sum = add(sum, block[i * STRIPE_SIZE / 16], keys + i);
		return sum;
	}
#pragma unroll
	for (u32 first = 0; first < STRIPES; first += IN_FLIGHT) {
#pragma unroll
		for (u32 i = 0; i < IN_FLIGHT; i++)
			data[i] = __ldcs(block + (first + i) * STRIPE_SIZE / 16);
#pragma unroll
		for (u32 i = 0; i < IN_FLIGHT; i++)
			sum = add(sum, data[i], keys + first + i);
	}
	return sum;
}

static __device__ u64 scramble(u64 acc, u64 key)
{
	return (acc ^ acc >> 47 ^ key) * P32_1;
}

/* The last 64 bytes count once more, or as far as the blocks left them out. */
static __device__ u64 last_stripe(const u8 *stripe, u32 lane)
{
	u64 x = read64(stripe + 8 * lane) ^
		read64(secret + SECRET_SIZE - STRIPE_SIZE - 7 + 8 * lane);

	return read64(stripe + 8 * (lane ^ 1)) + (x & 0xffffffff) * (x >> 32);
}

static __device__ u64 merge(const u64 *lanes, const u8 *key, u64 start)
{
	for (u32 i = 0; i < LANES; i += 2)
		start += fold(lanes[i] ^ read64(key + 8 * i),
			      lanes[i + 1] ^ read64(key + 8 * i + 8));
	return avalanche(start);
}

static __device__ void store(u64 *out, struct u128 h)
{
	out[0] = swap64(h.high);
	out[1] = swap64(h.low);
}

struct shared {
	u64 keys[SECRET_SIZE / 8];
	u64 sums[2][BLOCKS * LANES]; /* one turn and the next */
	u64 lanes[LANES];
};

/* `n` > 240 bytes, by the whole thread block. */
static __device__ void hash_long(struct shared *shared, const u8 *p, u32 n, u64 *out)
{
	const u32 n_scrambles = (n - 1) / BLOCK_SIZE;
	const u32 lane = threadIdx.x % LANES, pair = threadIdx.x % 4;
	u64 acc = lanes_at_first[lane];

	if (threadIdx.x < SECRET_SIZE / 8)
		shared->keys[threadIdx.x] = read64(secret + 8 * threadIdx.x);
	__syncthreads();
	for (u32 first = 0, turn = 0; first <= n_scrambles; first += BLOCKS, turn ^= 1) {
		u32 block = first + threadIdx.x / 4, n_blocks = n_scrambles - first;
		u32 n_stripes = block < n_scrambles ? STRIPES : (n - 1) % BLOCK_SIZE / STRIPE_SIZE;

		if (block <= n_scrambles) {
			ulonglong2 sum = sum_block((const ulonglong2 *)p + block * BLOCK_SIZE / 16 +
							   pair,
						   n_stripes, shared->keys + 2 * pair);

			shared->sums[turn][2 * threadIdx.x] = sum.x;
			shared->sums[turn][2 * threadIdx.x + 1] = sum.y;
		}
		/* Once a turn will do: the next turn's sums have a place of their own, and into this
		 * one nobody writes before those who scramble it have been here again. */
		__syncthreads();
		if (threadIdx.x < LANES) {
			const u64 *sum = shared->sums[turn] + lane;

#pragma unroll 8
			for (u32 i = 0; i < (n_blocks < BLOCKS ? n_blocks : BLOCKS); i++)
				acc = scramble(acc + sum[i * LANES],
					       shared->keys[SECRET_SIZE / 8 - LANES + lane]);
			if (n_blocks < BLOCKS)
				acc += sum[n_blocks * LANES];
		}
	}
	if (threadIdx.x < LANES)
		shared->lanes[lane] = acc + last_stripe(p + n - STRIPE_SIZE, lane);
	__syncthreads();
	if (threadIdx.x == 0) {
		struct u128 h = {
			merge(shared->lanes, secret + 11, n * P64_1),
			merge(shared->lanes, secret + SECRET_SIZE - STRIPE_SIZE - 11, ~(n * P64_2)),
		};

		store(out, h);
	}
}

/*
 * Leaves [first_leaf, first_leaf + n_leaves) of the `data_size` bytes at `data`, which is aligned to 16 bytes,
 * 16 bytes each to `out`, in the canonical order. A grid of n_leaves blocks of 256 threads.
 */
NAMED_AS_IN_C __global__ void __launch_bounds__(THREADS)
	weightd_digest(const u8 *data, u64 data_size, u64 first_leaf, u64 n_leaves, u64 *out)
{
	__shared__ struct shared shared;
	u64 offset = (first_leaf + blockIdx.x) * LEAF_SIZE;
	u32 n;

	if (blockIdx.x >= n_leaves || offset >= data_size)
		return;
	n = data_size - offset < LEAF_SIZE ? (u32)(data_size - offset) : (u32)LEAF_SIZE;
	out += 2 * blockIdx.x;
	if (n > 240)
		hash_long(&shared, data + offset, n, out);
	else if (threadIdx.x == 0)
		store(out, hash_short(data + offset, n));
}

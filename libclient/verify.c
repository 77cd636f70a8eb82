/*
 * Verification: compares the bytes with the published ones, by their leaves against the table behind them or beside
 * them, and the table against the digest that the server keeps; and compares a writer's bytes with their digests
 * before that. An image has a header too, which is compared with its digest and with the layout.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/digest.h"
#include "libclient/buffer.h"
#include "libclient/image/verbatim.h"
#include "libclient/version/tensor_range.h"
#include "libclient/writer.h"

#define VERIFY_LEAVES 16384 /* digested at a time: what is too few keeps no GPU busy */

/* A comparison of all parts of a version. It goes on behind a damaged one. */
struct verification {
	struct weightd_buffer *b;
	weightd_damage_fn fn; /* may be NULL */
	void *userdata;
	uint64_t n_damaged; /* leaves, and the header */
	struct weightd_damage first; /* of them */
	uint32_t next_tensor; /* of tensor_range_find() */
};

/* `d` has its place, and gets its tensors. */
static int report_damage(struct verification *v, struct weightd_damage *d)
{
	struct tensor_range range = {0};

	if (d->leaf != WEIGHTD_HEADER_LEAF)
		tensor_range_find(&v->b->layout, d->begin, d->end, &v->next_tensor, &range);
	d->size = sizeof(*d);
	d->n_tensors = range.n;
	d->first_tensor = range.first;
	d->last_tensor = range.last;
	if (v->n_damaged++ == 0)
		v->first = *d;
	if (v->fn && v->fn(v->userdata, d))
		return sentence_set(&v->b->w->sentence, -ECANCELED, "the verification was stopped");
	return 0;
}

/* The digests of leaves [first, first + n) that were published and those of the bytes that there are. */
static int verify_leaves(struct verification *v, uint64_t first, uint64_t n,
			 const uint8_t (*published)[HASH_SIZE], uint8_t (*found)[HASH_SIZE])
{
	struct weightd_buffer *b = v->b;
	struct sentence *s = &b->w->sentence;
	int r = memory_digest(&b->memory, b->data_size, first, n, found, s);

	if (r < 0)
		return sentence_set(s, r, "'%s@%" PRIu64 "' on %s cannot be digested: %s", b->name,
				    b->version, b->device, s->text);
	for (uint64_t i = 0; r == 0 && i < n; i++) {
		struct weightd_damage d = {
			.leaf = first + i,
			.begin = (first + i) * DIGEST_LEAF_SIZE,
			.end = (first + i + 1) * DIGEST_LEAF_SIZE,
		};

		if (d.end > b->data_size)
			d.end = b->data_size;
		if (memcmp(found[i], published[first + i], HASH_SIZE) != 0)
			r = report_damage(v, &d);
	}
	return r;
}

/* 0 if there is none. */
static int describe_damage(const struct verification *v)
{
	const struct weightd_buffer *b = v->b;
	const struct weightd_damage *d = &v->first;
	const struct tensor_range range = {d->first_tensor, d->last_tensor, d->n_tensors};
	char where[TENSOR_RANGE_TEXT_MAX + 40], more[48] = "";
	char tensors[TENSOR_RANGE_TEXT_MAX];

	if (v->n_damaged == 0)
		return 0;
	if (v->n_damaged > 1)
		(void)snprintf(more, sizeof(more), "; %" PRIu64 " more part%s damaged",
			       v->n_damaged - 1, v->n_damaged == 2 ? " is" : "s are");
	if (d->leaf == WEIGHTD_HEADER_LEAF)
		return sentence_set(&b->w->sentence, -EILSEQ,
				    "'%s@%" PRIu64 "' on %s: its header is not the one published%s",
				    b->name, b->version, b->device, more);
	(void)snprintf(where, sizeof(where), "leaf %" PRIu64 ", %s", d->leaf,
		       tensor_range_text(&b->layout, &range, tensors));
	return sentence_set(&b->w->sentence, -EILSEQ,
			    "'%s@%" PRIu64 "' on %s: the bytes from %" PRIu64 " to %" PRIu64
			    " are not those published: %s%s",
			    b->name, b->version, b->device, d->begin, d->end, where, more);
}

static int read_failed(struct weightd_buffer *b, int r, const char *why)
{
	return sentence_set(&b->w->sentence, r, "'%s@%" PRIu64 "' on %s cannot be read: %s",
			    b->name, b->version, b->device, why);
}

static int check_root(struct weightd_buffer *b, uint64_t n, const uint8_t (*leaves)[HASH_SIZE])
{
	uint8_t hash[HASH_SIZE];

	digest_root(leaves, n, hash);
	if (memcmp(hash, b->digest, HASH_SIZE) != 0)
		return sentence_set(&b->w->sentence, -EILSEQ,
				    "'%s@%" PRIu64
				    "' on %s: its table of digests is not the one published",
				    b->name, b->version, b->device);
	return 0;
}

static int read_leaves(struct weightd_buffer *b, uint64_t n, uint8_t (*ret)[HASH_SIZE])
{
	struct sentence *s = &b->w->sentence;
	int r = memory_read(&b->memory, digest_leaves_offset(b->data_size), ret, n * HASH_SIZE, s);

	return r < 0 ? read_failed(b, r, s->text) : 0;
}

/* --- Images ------------------------------------------------------------------------------------- */

/* The first `size` bytes of a file. */
static int read_start(struct weightd_buffer *b, int fd, uint64_t size, void *ret)
{
	char *p = ret;
	ssize_t n;

	for (uint64_t at = 0; at < size; at += (uint64_t)n) {
		n = pread(fd, p + at, size - at, (off_t)at);
		if (n < 0 && errno == EINTR)
			n = 0;
		else if (n < 0)
			return read_failed(b, -errno, strerror(errno));
		else if (n == 0)
			return read_failed(b, -EBADMSG, "its memory is shorter than its size");
	}
	return 0;
}

/* Other programs read the header, readers that attach use the layout: both must describe the same tensors. */
static int check_header(struct verification *v, const void *header, uint64_t size,
			const uint8_t digest[HASH_SIZE])
{
	struct weightd_buffer *b = v->b;
	struct sentence *s = &b->w->sentence;
	struct weightd_damage d = {.leaf = WEIGHTD_HEADER_LEAF, .end = size};
	uint8_t hash[HASH_SIZE];
	int r;

	hash128(header, size, hash);
	if (memcmp(hash, digest, HASH_SIZE) != 0)
		return report_damage(v, &d);
	r = verbatim_check(header, size, &b->layout, s);
	return r < 0 ? sentence_set(s, r, "'%s@%" PRIu64 "' on %s: its header %s", b->name,
				    b->version, b->device, s->text)
		     : 0;
}

/* `ret` has room for the digest of the header, and behind it for those of the leaves. */
static int verify_header(struct verification *v, uint64_t n, int digests_fd, int slot_fd,
			 uint8_t (*ret)[HASH_SIZE])
{
	struct weightd_buffer *b = v->b;
	uint64_t size = b->memory.offset;
	cleanup(freep) void *header = malloc(size);
	int r;

	if (!header)
		return sentence_set(&b->w->sentence, -ENOMEM, "out of memory");
	r = read_start(b, digests_fd, (n + 1) * HASH_SIZE, ret);
	if (r == 0)
		r = read_start(b, slot_fd, size, header);
	return r < 0 ? r : check_header(v, header, size, ret[0]);
}

/* After a restart the lease is another one, or none. */
static int proof_again(struct weightd *w, struct client_call *call)
{
	const struct weightd_buffer *b = call->subject;

	call->request.proof.id = b->lease;
	return b->lease ? 0
			: sentence_set(&w->sentence, -ESTALE,
				       "'%s@%" PRIu64 "' on %s has no lease any more; attach anew",
				       b->name, b->version, b->device);
}

/* The same comparison without the table: by the root, which the attachment has. It cannot name the wrong range. */
static int verify_whole(struct weightd_buffer *b, uint64_t n, uint8_t (*leaves)[HASH_SIZE])
{
	struct sentence *s = &b->w->sentence;
	uint8_t hash[HASH_SIZE];
	int r = memory_digest(&b->memory, b->data_size, 0, n, leaves, s);

	if (r < 0)
		return read_failed(b, r, s->text);
	digest_root((const void *)leaves, n, hash);
	if (memcmp(hash, b->digest, HASH_SIZE) != 0)
		return sentence_set(s, -EILSEQ,
				    "'%s@%" PRIu64 "' on %s: its bytes are not those published",
				    b->name, b->version, b->device);
	return 0;
}

/* On success the caller releases `call`, with the descriptors of the digests and of the slot. */
static int ask_proof(struct weightd_buffer *b, struct client_call *call)
{
	int r = memory_check(&b->memory, &b->w->sentence);

	if (r < 0)
		return read_failed(b, r, b->w->sentence.text);
	*call = (struct client_call){.op = WIRE_PROOF, .again = proof_again, .subject = b};
	r = proof_again(b->w, call);
	return r < 0 ? r : client_call_run(b->w, call);
}

/* Reads the digests, and compares the header with them. 1: without a lease or a server there are none to read. */
static int read_proof(struct verification *v, uint64_t n, uint8_t (*ret)[HASH_SIZE])
{
	struct client_call call;
	int r = ask_proof(v->b, &call);

	if (r < 0)
		return 1;
	r = verify_header(v, n, call.reply_fds[0], call.reply_fds[1], ret);
	client_call_deinit(&call);
	return r;
}

int buffer_read_header(struct weightd_buffer *b, void *ret)
{
	struct client_call call;
	int r = ask_proof(b, &call);

	if (r < 0)
		return r;
	r = read_start(b, call.reply_fds[1], b->memory.offset, ret);
	client_call_deinit(&call);
	return r;
}

/* --- Buffers ------------------------------------------------------------------------------------ */

static int verify_buffer(struct weightd_buffer *b, weightd_damage_fn fn, void *userdata)
{
	struct verification v = {.b = b, .fn = fn, .userdata = userdata};
	uint64_t n = digest_n_leaves(b->data_size);
	cleanup(freep) uint8_t(*digests)[HASH_SIZE] = NULL;
	cleanup(freep) uint8_t(*found)[HASH_SIZE] = NULL;
	const uint8_t(*leaves)[HASH_SIZE];
	int r;

	if (!b->has_digest)
		return sentence_set(&b->w->sentence, -ENODATA,
				    "'%s@%" PRIu64 "' on %s was published without a digest",
				    b->name, b->version, b->device);
	digests = calloc(n + 1, sizeof(*digests));
	found = calloc(VERIFY_LEAVES, sizeof(*found));
	if (!digests || !found)
		return sentence_set(&b->w->sentence, -ENOMEM, "out of memory");
	leaves = (const void *)(digests + 1);
	r = b->memory.offset ? read_proof(&v, n, digests) : read_leaves(b, n, digests + 1);
	if (r > 0)
		return verify_whole(b, n, digests + 1);
	if (r == 0)
		r = check_root(b, n, leaves);
	for (uint64_t i = 0; r == 0 && i < n; i += VERIFY_LEAVES)
		r = verify_leaves(&v, i, n - i < VERIFY_LEAVES ? n - i : VERIFY_LEAVES, leaves,
				  found);
	return r < 0 ? r : describe_damage(&v);
}

int weightd_buffer_verify(struct weightd_buffer *b)
{
	return weightd_buffer_verify_each(b, NULL, NULL);
}

int weightd_buffer_verify_each(struct weightd_buffer *b, weightd_damage_fn fn, void *userdata)
{
	uint64_t ticket;
	int r;

	if (!b->is_mutable)
		return verify_buffer(b, fn, userdata);
	r = weightd_read_begin(b, &ticket);
	if (r == -EUCLEAN || r == -ESTALE)
		return sentence_set(&b->w->sentence, r, "'%s' on %s %s", b->name, b->device,
				    r == -ESTALE ? "was removed" : "is torn");
	if (r == 0 && head_version(ticket) == b->version) {
		r = verify_buffer(b, fn, userdata);
		if (!weightd_read_retry(b, ticket))
			return r;
	}
	/* The bytes of another version do not match the digest of this one. */
	return sentence_set(&b->w->sentence, -EAGAIN,
			    "'%s' on %s is not at version %" PRIu64
			    " any more: it is updated in place",
			    b->name, b->device, b->version);
}

static int compare_run(const struct weightd_writer *wr, uint64_t first, uint64_t n,
		       uint8_t (*found)[HASH_SIZE], uint64_t *ret_bad, struct sentence *s)
{
	int r = memory_digest(&wr->memory, wr->data_size, first, n, found, s);

	for (uint64_t i = 0; r == 0 && i < n; i++)
		if (memcmp(found[i], wr->leaves[first + i], HASH_SIZE) != 0) {
			*ret_bad = first + i;
			r = -EILSEQ;
		}
	return r;
}

int writer_compare(const struct weightd_writer *wr, uint64_t first, uint64_t n, uint64_t *ret_bad,
		   struct sentence *s)
{
	cleanup(freep) uint8_t(*found)[HASH_SIZE] = calloc(VERIFY_LEAVES, sizeof(*found));
	int r = found ? 0 : sentence_set(s, -ENOMEM, "out of memory");

	for (uint64_t i = 0; r == 0 && i < n; i += VERIFY_LEAVES)
		r = compare_run(wr, first + i, n - i < VERIFY_LEAVES ? n - i : VERIFY_LEAVES, found,
				ret_bad, s);
	return r;
}

static int check_leaves(const struct weightd_writer *wr, uint64_t first, uint64_t n)
{
	struct sentence *s = &wr->w->sentence;

	if (wr->version || wr->aborted)
		return sentence_set(s, -EALREADY,
				    "this writer has published or was aborted already");
	if (wr->owner != getpid())
		return sentence_set(s, -ECHILD, "this writer belongs to the parent process");
	if (first > wr->n_leaves || n > wr->n_leaves - first)
		return sentence_set(s, -EINVAL,
				    "%" PRIu64 " leaves from %" PRIu64
				    " on are not among the %" PRIu64 " that there are",
				    n, first, wr->n_leaves);
	for (uint64_t i = first; i < first + n; i++)
		if (!wr->leaf_done[i])
			return sentence_set(s, -ENODATA,
					    "leaf %" PRIu64 " was not digested: there is nothing to "
					    "compare it with",
					    i);
	return 0;
}

int weightd_writer_verify(struct weightd_writer *wr, uint64_t first, uint64_t n)
{
	struct sentence *s = &wr->w->sentence;
	int r = check_leaves(wr, first, n);
	uint64_t bad;

	if (r < 0)
		return r;
	r = writer_compare(wr, first, n, &bad, s);
	if (r == -EILSEQ)
		return sentence_set(s, r,
				    "the bytes from %" PRIu64 " to %" PRIu64
				    " are not those that were digested",
				    bad * DIGEST_LEAF_SIZE, (bad + 1) * DIGEST_LEAF_SIZE);
	return r < 0 ? sentence_set(s, r, "the bytes cannot be digested: %s", s->text) : 0;
}

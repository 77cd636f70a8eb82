/*
 * Locations of the bytes of a buffer or writer, and copies of them, for callers that cannot dereference the
 * addresses.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "libclient/buffer.h"
#include "libclient/writer.h"

static_assert((int)WEIGHTD_MEMORY_HOST == (int)WIRE_MEMORY_HOST &&
		      (int)WEIGHTD_MEMORY_CUDA == (int)WIRE_MEMORY_CUDA &&
		      (int)WEIGHTD_MEMORY_CUDA_IPC == (int)WIRE_MEMORY_CUDA_IPC,
	      "kinds of memory are ABI");

/* Copies as much of it as the caller's struct has room for. */
static int put_location(const struct memory *m, struct weightd_location *ret)
{
	struct weightd_location location = {
		.size = ret->size < sizeof(location) ? ret->size : sizeof(location),
		.memory = (enum weightd_memory)m->location.memory,
		.device = m->device,
		.map_size = m->location.memory == WIRE_MEMORY_CUDA ? m->location.map_size : 0,
		.data_offset = m->offset,
	};

	static_assert(sizeof(location.uuid) == WIRE_UUID_SIZE, "UUIDs are ABI");
	if (ret->size < offsetof(struct weightd_location, uuid))
		return -EINVAL; /* the caller forgot to set it */
	memcpy(location.uuid, m->location.uuid, sizeof(location.uuid));
	memcpy(ret, &location, location.size);
	return 0;
}

int weightd_buffer_location(const struct weightd_buffer *b, struct weightd_location *ret)
{
	return put_location(&b->memory, ret);
}

int weightd_writer_location(const struct weightd_writer *wr, struct weightd_location *ret)
{
	return put_location(&wr->memory, ret);
}

int weightd_buffer_ipc_handle(const struct weightd_buffer *b, uint8_t ret_handle[64])
{
	struct sentence unsaid; /* any thread may ask */
	int r;

	static_assert(WIRE_HANDLE_SIZE == 64, "handles are CUDA's");
	if (b->memory.location.memory != WIRE_MEMORY_CUDA_IPC)
		return -EOPNOTSUPP;
	r = memory_check(&b->memory, &unsaid);
	if (r == 0)
		memcpy(ret_handle, b->memory.location.handle, WIRE_HANDLE_SIZE);
	return r;
}

static int check_range(struct weightd *w, uint64_t size, uint64_t offset, uint64_t n)
{
	if (offset <= size && n <= size - offset)
		return 0;
	return sentence_set(&w->sentence, -EINVAL,
			    "%" PRIu64 " bytes from %" PRIu64 " on are not within the %" PRIu64
			    " that there are",
			    n, offset, size);
}

int weightd_buffer_read(struct weightd_buffer *b, uint64_t offset, void *to, uint64_t n)
{
	struct sentence *s = &b->w->sentence;
	int r = check_range(b->w, b->data_size, offset, n);

	if (r < 0)
		return r;
	r = memory_read(&b->memory, offset, to, n, s);
	if (r < 0)
		return sentence_set(s, r, "'%s@%" PRIu64 "' on %s cannot be read: %s", b->name,
				    b->version, b->device, s->text);
	return 0;
}

/* In a child the bytes of its parent are not mapped. */
static int check_writer(struct weightd_writer *wr, uint64_t offset, uint64_t n)
{
	if (!wr->version && wr->owner != getpid())
		return sentence_set(&wr->w->sentence, -ECHILD,
				    "this writer belongs to the parent process");
	return check_range(wr->w, wr->data_size, offset, n);
}

int weightd_writer_read(struct weightd_writer *wr, uint64_t offset, void *to, uint64_t n)
{
	struct sentence *s = &wr->w->sentence;
	int r = check_writer(wr, offset, n);

	if (r < 0)
		return r;
	r = memory_read(&wr->memory, offset, to, n, s);
	return r < 0 ? sentence_set(s, r, "the bytes cannot be read: %s", s->text) : 0;
}

int weightd_writer_write(struct weightd_writer *wr, uint64_t offset, const void *from, uint64_t n)
{
	struct sentence *s = &wr->w->sentence;
	int r = check_writer(wr, offset, n);

	if (r < 0)
		return r;
	if (wr->version)
		return sentence_set(s, -EALREADY,
				    "this writer has published already; create another");
	r = memory_write(&wr->memory, offset, from, n, s);
	return r < 0 ? sentence_set(s, r, "the bytes cannot be written: %s", s->text) : 0;
}

/*
 * Any bytes as a packet, in both directions. A decoded message has the bytes of the packet, encodes
 * to it again, and its strings end; a refusal leaves the output alone.
 *
 * The first byte is not a part of the packet: bit 0 makes it a reply, bit 1 corrects size and
 * number of descriptors in the header (a fuzzer rarely does), the bits from 4 on are the number of
 * descriptors with it.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/codec.h"
#include "tests/fuzz/fuzz.h"

#define IS_REPLY 1
#define FIX_HEADER 2

static bool is_all(const void *data, size_t size, uint8_t value)
{
	const uint8_t *p = data;

	for (size_t i = 0; i < size; i++)
		if (p[i] != value)
			return false;
	return true;
}

#define MUST_END(field) MUST(memchr(field, '\0', sizeof(field)))

static void check_strings(const struct wire_request *m)
{
	switch (m->header.op) {
	case WIRE_HELLO:
		MUST_END(m->hello.program);
		break;
	case WIRE_CREATE:
	case WIRE_CREATE_IMAGE:
	case WIRE_CREATE_OWNED:
	case WIRE_CREATE_IMAGE_OWNED:
		MUST_END(m->create.name);
		MUST_END(m->create.device);
		break;
	case WIRE_HELLO_ATTACH:
		MUST_END(m->hello_attach.hello.program);
		/* fallthrough */
	case WIRE_ATTACH:
		MUST_END(m->attach.name);
		MUST_END(m->attach.device);
		break;
	case WIRE_WAIT:
		MUST_END(m->wait.name);
		MUST_END(m->wait.device);
		break;
	case WIRE_LIST:
		MUST_END(m->list.name);
		MUST_END(m->list.device);
		break;
	case WIRE_DROP:
		MUST_END(m->drop.name);
		MUST_END(m->drop.device);
		break;
	case WIRE_ROLLBACK:
		MUST_END(m->rollback.name);
		MUST_END(m->rollback.device);
		break;
	case WIRE_ACCESS:
		MUST_END(m->access.name);
		MUST_END(m->access.device);
		break;
	case WIRE_LAYOUT:
		MUST_END(m->layout.name);
		MUST_END(m->layout.device);
		break;
	case WIRE_FILES:
		MUST_END(m->files.name);
		MUST_END(m->files.device);
		break;
	case WIRE_JOB_CREATE:
		MUST_END(m->job_create.name);
		break;
	case WIRE_JOB_JOIN:
		MUST_END(m->job_join.name);
		MUST(m->job_join.n_parts <= WIRE_JOB_PARTS_MAX);
		for (unsigned i = 0; i < WIRE_JOB_PARTS_MAX; i++)
			MUST_END(m->job_join.parts[i].kind);
		break;
	case WIRE_JOB_DESCRIPTION:
		MUST_END(m->job_description.name);
		break;
	case WIRE_JOB_REMOVE:
		MUST_END(m->job_remove.name);
		break;
	case WIRE_JOB_VIEW:
		MUST_END(m->job_view.name);
		break;
	default:
		break;
	}
}

static void decode_request(const uint8_t *packet, size_t size, unsigned n_fds)
{
	struct wire_request m, again;

	memset(&m, 0x5a, sizeof(m));
	if (codec_decode_request(packet, size, n_fds, &m) < 0) {
		MUST(is_all(&m, sizeof(m), 0x5a));
		return;
	}
	MUST(m.header.n_fds == n_fds && n_fds <= WIRE_FDS_MAX);
	MUST(!memcmp(&m, packet, size) && is_all((char *)&m + size, sizeof(m) - size, 0));
	check_strings(&m);
	if (m.header.op == WIRE_ATTACH || m.header.op == WIRE_HELLO_ATTACH)
		MUST(m.attach.flags & WIRE_ATTACH_OWNER || !m.attach.owner);
	again = m;
	memset(&again.header, 0xff, sizeof(again.header));
	MUST(codec_seal_request(&again, m.header.op, m.header.serial) == size);
	MUST(!memcmp(&again, packet, size));
}

static void decode_reply(const uint8_t *packet, size_t size, unsigned n_fds)
{
	struct wire_reply m, again;
	enum wire_op op;

	memset(&m, 0x5a, sizeof(m));
	if (codec_decode_reply(packet, size, n_fds, &m) < 0) {
		MUST(is_all(&m, sizeof(m), 0x5a));
		return;
	}
	op = m.header.op & (unsigned)~WIRE_REPLY;
	MUST(m.header.n_fds == n_fds && n_fds <= WIRE_FDS_MAX);
	MUST(!memcmp(&m, packet, size) && is_all((char *)&m + size, sizeof(m) - size, 0));
	if (op == WIRE_HELLO_ATTACH)
		MUST_END(m.hello_attach.hello.release);
	if (op == WIRE_HELLO_ERROR)
		MUST_END(m.hello_error.hello.release);
	if (op == WIRE_ERROR || op == WIRE_HELLO_ERROR) {
		MUST_END(m.error.text);
		MUST(m.error.error < 0);
	}
	if ((op == WIRE_LIST || op == WIRE_EVENTS) && m.list.n_records)
		MUST(m.list.n_records <= sizeof(m.list.records) / m.list.record_size);
	if (op == WIRE_JOB_VIEW)
		MUST(m.job_view.n_ranks >= 1 && m.job_view.n_ranks <= WIRE_JOB_RANKS_MAX);
	again = m;
	memset(&again.header, 0xff, sizeof(again.header));
	MUST(codec_seal_reply(&again, op, m.header.serial) == size);
	MUST(!memcmp(&again, packet, size));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t how = size ? data[0] : 0;
	unsigned n_fds = how >> 4;
	uint8_t *packet;

	if (size == 0)
		return 0;
	size--;
	packet = malloc(size ? size : 1); /* ASan sees a read past the end */
	MUST(packet);
	memcpy(packet, data + 1, size);
	if (how & FIX_HEADER && size >= sizeof(struct wire_header)) {
		struct wire_header *header = (struct wire_header *)packet;

		header->size = (uint32_t)size;
		header->n_fds = (uint16_t)n_fds;
	}
	if (how & IS_REPLY)
		decode_reply(packet, size, n_fds);
	else
		decode_request(packet, size, n_fds);
	free(packet);
	return 0;
}

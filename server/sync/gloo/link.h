/*
 * A link
 *
 * A connection of Gloo's between two nodes, in both directions, and transfers over it, which Gloo carries in a
 * thread of its own. This is all of Gloo that the C of this folder sees; no exception leaves it. A link is never
 * freed: the process ends with its epoch. Of Gloo it needs what Debian's release and today's both have.
 *
 * Gloo asks nobody who they are. Who connects to a link's port first is the other end: so whoever uses a link
 * looks at where its other end is, and exchanges tokens over it, before bytes go out or are believed.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LINK_WHY_SIZE 256
#define LINK_HELLO_MAX 192

struct link;
struct transfer; /* of some bytes, in one direction */

/* Listens at an address, with a port of its own. One of the two ends is the first. -EIO with a sentence. */
int link_new(const struct sockaddr_storage *address, bool is_first, struct link **ret,
	     char why[LINK_WHY_SIZE]);
/* What the other end has to know to connect, and how long it is. */
size_t link_hello(const struct link *l, uint8_t ret[LINK_HELLO_MAX]);
uint16_t link_port(const struct link *l);
/* Where a hello leads to. -EPIPE with a sentence. */
int link_hello_place(const uint8_t *hello, size_t size, struct sockaddr_storage *ret,
		     char why[LINK_WHY_SIZE]);

/*
 * Connects to the end that said this hello, which has to connect to this one. Blocks until both did; nothing
 * ends that but the end of the process. -EPIPE with a sentence.
 */
int link_connect(struct link *l, const uint8_t *hello, size_t size, char why[LINK_WHY_SIZE]);
/* Our own descriptor of its socket, which stays open when Gloo has closed its one. From any thread; -1: none yet. */
int link_fd(const struct link *l);

/*
 * Both ends call these with the same slot and size; each slot once. The bytes belong to the transfer until it
 * was waited for. None of them blocks. -EPIPE with a sentence: the link is broken. Of what the other end sends too
 * little of, the rest stays as it was, and Gloo does not say so.
 */
int link_send(struct link *l, uint64_t slot, const void *from, size_t size, struct transfer **ret,
	      char why[LINK_WHY_SIZE]);
int link_receive(struct link *l, uint64_t slot, void *to, size_t size, struct transfer **ret,
		 char why[LINK_WHY_SIZE]);
/* Blocks until it is done, and frees it. Done for a sender: the kernel has it. -EPIPE with a sentence. */
int transfer_finish(struct transfer *t, char why[LINK_WHY_SIZE]);

/* Bytes of finished transfers, with what Gloo puts around them. */
uint64_t link_sent(const struct link *l);
uint64_t link_received(const struct link *l);

#ifdef __cplusplus
}
#endif

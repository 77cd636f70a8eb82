/*
 * A link
 *
 * A Gloo connection between two nodes, in both directions, and transfers over it, which a thread of
 * Gloo carries. The C files of this folder use only this interface of Gloo; no exception leaves it.
 * A link is never freed: the process ends with its epoch. It works with Debian's release of Gloo
 * and with the current one.
 *
 * Gloo does not authenticate peers: the first one that connects to the port of a link is the other end.
 * So a user of a link must check the address of the other end, and exchange tokens over it, before
 * it sends or trusts bytes.
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
struct transfer; /* some bytes, in one direction */

/*
 * Listens at an address, with a port of its own. One of the two ends is the first. -EIO with a
 * sentence.
 */
int link_new(const struct sockaddr_storage *address, bool is_first, struct link **ret,
	     char why[LINK_WHY_SIZE]);
/* Writes the data that the other end needs to connect. Returns its size. */
size_t link_hello(const struct link *l, uint8_t ret[LINK_HELLO_MAX]);
uint16_t link_port(const struct link *l);
/* The address in a hello. -EPIPE with a sentence. */
int link_hello_place(const uint8_t *hello, size_t size, struct sockaddr_storage *ret,
		     char why[LINK_WHY_SIZE]);

/*
 * Connects to the end that made this hello, which must connect to this one. Blocks until both have;
 * only the end of the process interrupts it. -EPIPE with a sentence.
 */
int link_connect(struct link *l, const uint8_t *hello, size_t size, char why[LINK_WHY_SIZE]);
/*
 * Our own descriptor of its socket, which stays open when Gloo closes its one. Any thread may call
 * this; -1: none yet.
 */
int link_fd(const struct link *l);

/*
 * Both ends call these with the same slot and size; each slot once. The transfer owns the bytes
 * until transfer_finish(). These do not block. -EPIPE with a sentence: the link is broken. If the
 * peer sends too few bytes, the rest stays unchanged, and Gloo reports no error.
 */
int link_send(struct link *l, uint64_t slot, const void *from, size_t size, struct transfer **ret,
	      char why[LINK_WHY_SIZE]);
int link_receive(struct link *l, uint64_t slot, void *to, size_t size, struct transfer **ret,
		 char why[LINK_WHY_SIZE]);
/*
 * Blocks until the transfer is done, and frees it. A send is done when the kernel has the bytes.
 * -EPIPE with a sentence.
 */
int transfer_finish(struct transfer *t, char why[LINK_WHY_SIZE]);

/* Bytes of finished transfers, with Gloo's framing. */
uint64_t link_sent(const struct link *l);
uint64_t link_received(const struct link *l);

#ifdef __cplusplus
}
#endif

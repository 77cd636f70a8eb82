/*
 * A link
 *
 * A connection between two nodes, in both directions, and transfers over it, which a thread of the
 * link carries: Gloo's (gloo_link.cc), or with TLS one of ours (tls_link.c), since Gloo as it is
 * packaged has no TLS. Both put the same headers around the same bytes (planned_bytes.h). A link is
 * never freed: the process ends with its epoch.
 *
 * Gloo does not authenticate peers: the first one that connects to the port of a link is the other
 * end. So a user of a link must check the address of the other end, and exchange tokens over it,
 * before it sends or trusts bytes.
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

struct link_ops;
struct ssl_ctx_st; /* SSL_CTX */
struct traffic;

/* The beginning of each kind's own. */
struct link {
	const struct link_ops *ops;
};

/* Some bytes, in one direction; likewise. */
struct transfer {
	struct link *link;
};

struct link_form {
	struct sockaddr_storage address; /* of this node */
	bool is_first; /* one of the two ends is */
	struct ssl_ctx_st *tls; /* the engine's; NULL: Gloo, in the clear */
};

/* Listens at an address, with a port of its own. -EIO with a sentence. */
int link_new(const struct link_form *form, struct link **ret, char why[LINK_WHY_SIZE]);
/* Writes the data that the other end needs to connect. Returns its size. */
size_t link_hello(const struct link *l, uint8_t ret[LINK_HELLO_MAX]);
/* The port in it; 0: this end only dials. */
uint16_t link_port(const struct link *l);
/* The address in the hello of the other end. -EPIPE with a sentence. */
int link_hello_place(const struct link *l, const uint8_t *hello, size_t size,
		     struct sockaddr_storage *ret, char why[LINK_WHY_SIZE]);

/*
 * Connects to the end of this node that made this hello, which must connect to this one. Blocks until
 * both have; only the end of the process interrupts it. -EPIPE with a sentence.
 */
int link_connect(struct link *l, const char *node, const uint8_t *hello, size_t size,
		 char why[LINK_WHY_SIZE]);
/*
 * Our own descriptor of its socket, which stays open when the link closes its one. Any thread may
 * call this; -1: none yet.
 */
int link_fd(const struct link *l);
/* This end made the connection. -errno. */
int link_is_dialled(const struct link *l, bool *ret);

/*
 * Both ends call these with the same slot and size; each slot once. The transfer owns the bytes
 * until transfer_finish(). These do not block. -EPIPE with a sentence: the link is broken. If the
 * peer sends too few bytes, the rest stays unchanged; Gloo reports no error.
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

/*
 * The reason for which this end refused the last peer that connected; false: it refused none. Any
 * thread may call this.
 */
bool link_refusal(struct link *l, char why[LINK_WHY_SIZE]);

/* Bytes of finished transfers, with the headers around them. -errno. */
int link_traffic(struct link *l, struct traffic *ret);

/* --- Kinds of links ---------------------------------------------------------------------------- */

struct link_ops {
	bool explains; /* a sentence names the cause, and is empty if the peer closed */
	int (*make)(const struct link_form *form, struct link **ret, char why[LINK_WHY_SIZE]);
	size_t (*hello)(const struct link *l, uint8_t ret[LINK_HELLO_MAX]);
	int (*hello_place)(const struct link *l, const uint8_t *hello, size_t size,
			   struct sockaddr_storage *ret, char why[LINK_WHY_SIZE]);
	int (*connect)(struct link *l, const char *node, const uint8_t *hello, size_t size,
		       char why[LINK_WHY_SIZE]);
	int (*fd)(const struct link *l);
	int (*send)(struct link *l, uint64_t slot, const void *from, size_t size,
		    struct transfer **ret, char why[LINK_WHY_SIZE]);
	int (*receive)(struct link *l, uint64_t slot, void *to, size_t size, struct transfer **ret,
		       char why[LINK_WHY_SIZE]);
	int (*finish)(struct transfer *t, char why[LINK_WHY_SIZE]);
	bool (*refusal)(struct link *l, char why[LINK_WHY_SIZE]); /* NULL: it refuses nothing */
	/* One of the two: bytes of which all are payload, or all that link_traffic() returns. */
	void (*count)(const struct link *l, uint64_t *ret_received, uint64_t *ret_sent);
	int (*traffic)(struct link *l, struct traffic *ret);
};

extern const struct link_ops gloo_link_ops, tls_link_ops;

#ifdef __cplusplus
}
#endif

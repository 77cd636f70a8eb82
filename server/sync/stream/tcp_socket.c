#include "server/sync/stream/tcp_socket.h"

#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ipc/base/fd.h"

#define AT_ONCE_MAX ((uint64_t)1 << 30)

void tcp_socket_init(struct tcp_socket *l)
{
	*l = (struct tcp_socket){.fd = -1};
}

void tcp_socket_open(struct tcp_socket *l, int fd, SSL *tls, bool is_ours)
{
	*l = (struct tcp_socket){.fd = fd, .tls = tls, .is_ours = is_ours};
}

void tcp_socket_close(struct tcp_socket *l)
{
	SSL_free(l->tls);
	l->tls = NULL;
	l->fd = fd_close(l->fd);
}

void tcp_socket_tune(int fd, uint64_t stall_ns, uint64_t max_rate)
{
	unsigned timeout_ms = (unsigned)(stall_ns / 1000000);
	int on = 1;

	/* An error does no harm here: these only make it faster. */
	(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof(timeout_ms));
	if (max_rate)
		tcp_socket_limit(fd, max_rate);
}

void tcp_socket_limit(int fd, uint64_t max_rate)
{
	uint64_t rate = max_rate ? max_rate : UINT64_MAX;

	(void)setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof(rate));
}

void tcp_socket_keep_short(int fd, unsigned n_bytes)
{
	(void)setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &n_bytes, sizeof(n_bytes));
}

static int of_errno(void)
{
	switch (errno) {
	case EAGAIN:
	case EINTR:
		return -EAGAIN;
	case ECONNRESET:
	case ECONNABORTED:
	case EPIPE:
		return -EPIPE;
	default:
		return -errno;
	}
}

static int of_tls(const struct tcp_socket *l, int r)
{
	switch (SSL_get_error(l->tls, r)) {
	case SSL_ERROR_WANT_READ:
	case SSL_ERROR_WANT_WRITE:
		return -EAGAIN;
	case SSL_ERROR_ZERO_RETURN:
		return -EPIPE;
	case SSL_ERROR_SYSCALL:
		return errno ? of_errno() : -EPIPE;
	default:
		/*
		 * OpenSSL 3.0 reports a connection that ends without close_notify as an error. That
		 * is no protocol error here.
		 */
		if (ERR_GET_REASON(ERR_peek_last_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING)
			return -EPIPE;
		return -EPROTO;
	}
}

int tcp_socket_handshake(struct tcp_socket *l)
{
	int r;

	if (!l->tls)
		return 0;
	ERR_clear_error();
	errno = 0;
	r = SSL_do_handshake(l->tls);
	if (r != 1)
		return of_tls(l, r);
	l->is_kernel_sending = BIO_get_ktls_send(SSL_get_wbio(l->tls));
	l->is_kernel_receiving = BIO_get_ktls_recv(SSL_get_rbio(l->tls));
	return 0;
}

ssize_t tcp_socket_read(struct tcp_socket *l, void *to, uint64_t size)
{
	size_t n_tls = 0;
	ssize_t n;
	int r;

	size = size < AT_ONCE_MAX ? size : AT_ONCE_MAX;
	if (l->tls) {
		ERR_clear_error();
		errno = 0;
		r = SSL_read_ex(l->tls, to, size, &n_tls);
		if (r != 1)
			return of_tls(l, r);
		l->read += n_tls;
		return (ssize_t)n_tls;
	}
	n = recv(l->fd, to, size, MSG_DONTWAIT);
	if (n < 0)
		return of_errno();
	l->read += (uint64_t)n;
	return n ? n : -EPIPE;
}

static ssize_t write_tls(struct tcp_socket *l, const void *from, uint64_t size)
{
	size_t n = 0;
	int r;

	ERR_clear_error();
	errno = 0;
	r = SSL_write_ex(l->tls, from, size, &n);
	if (r != 1)
		return of_tls(l, r);
	l->written += n;
	return (ssize_t)n;
}

ssize_t tcp_socket_write(struct tcp_socket *l, const void *from, uint64_t size)
{
	ssize_t n;

	if (l->tls)
		return write_tls(l, from, size);
	n = send(l->fd, from, size, MSG_DONTWAIT | MSG_NOSIGNAL);
	if (n < 0)
		return of_errno();
	l->written += (uint64_t)n;
	return n;
}

/*
 * OpenSSL has nothing of its own to send: all earlier writes were complete. It returns the number
 * of bytes as sendfile() does. A key update would fail, but neither side ever requests one.
 */
static ssize_t write_file_tls(struct tcp_socket *l, int fd, uint64_t offset, uint64_t size)
{
	ossl_ssize_t n;

	ERR_clear_error();
	errno = 0;
	n = SSL_sendfile(l->tls, fd, (off_t)offset, size, 0);
	if (n < 0)
		return of_tls(l, -1);
	l->written += (uint64_t)n;
	return n ? n : -EIO; /* the memory ended before its size */
}

ssize_t tcp_socket_write_memory(struct tcp_socket *l, const struct memory *m, uint64_t offset,
				uint64_t size)
{
	off_t at = (off_t)(m->at + offset);
	ssize_t n;

	size = size < AT_ONCE_MAX ? size : AT_ONCE_MAX;
	if (l->is_kernel_sending)
		return write_file_tls(l, m->fd, m->at + offset, size);
	if (l->tls)
		return write_tls(l, m->map + offset, size);
	n = sendfile(l->fd, m->fd, &at, size);
	if (n < 0)
		return of_errno();
	l->written += (uint64_t)n;
	return n ? n : -EIO; /* the memory ended before its size */
}

uint64_t tcp_socket_acknowledged(const struct tcp_socket *l)
{
	struct tcp_info info;

	return traffic_info(l->fd, &info) < 0 ? 0 : info.tcpi_bytes_acked;
}

/*
 * Only the kernel counts the records that it makes. Bytes that arrived in the last record count as
 * read: without TLS they would be in the kernel's count.
 */
int tcp_socket_traffic(const struct tcp_socket *l, struct traffic *ret)
{
	struct traffic t = {
		.received = l->tls ? BIO_number_read(SSL_get_rbio(l->tls)) : l->read,
		.sent = l->tls ? BIO_number_written(SSL_get_wbio(l->tls)) : l->written,
		.payload_received = l->read + (l->tls ? (uint64_t)SSL_pending(l->tls) : 0),
		.payload_sent = l->written,
	};
	int r = traffic_count(l->fd, l->is_ours, &t);

	if (r < 0)
		return r;
	if (l->is_kernel_receiving)
		t.received = t.kernel_received;
	if (l->is_kernel_sending)
		t.sent = t.kernel_sent;
	*ret = t;
	return 0;
}

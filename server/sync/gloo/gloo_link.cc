/*
 * Links of Gloo: the C files of this folder use only this interface of it, and no exception leaves it. It
 * works with the release of Gloo that Debian has and with the current one.
 */
#include "server/sync/gloo/link.h"

#include <arpa/inet.h>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <exception>
#include <fcntl.h>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/device.h>
#include <memory>
#include <netdb.h>
#include <stdexcept>
#include <string>
#include <sys/time.h>
#include <unistd.h>
#include <vector>

extern "C" {
#include "server/base/log.h"
#include "server/sync/base/planned_bytes.h"
}

using gloo::transport::tcp::Address;

/* The loop watches the progress: a Gloo wait that ends too early breaks the link. */
static constexpr auto FOR_EVER = std::chrono::hours(24 * 90);

struct gloo_link : link {
	/* One for each link, which gives it a port of its own to find its socket by. */
	std::shared_ptr<gloo::transport::Device> device;
	std::shared_ptr<gloo::transport::Context> context;
	int other; /* rank of the other end, 0 or 1 */
	std::vector<char> hello;
	/* Written by the threads that connect and transfer, read by the loop. */
	std::atomic<int> fd{-1};
	std::atomic<uint64_t> sent{0};
	std::atomic<uint64_t> received{0};
};

struct gloo_transfer : transfer {
	std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
	bool is_send;
};

/* Runs `fn`; the text of an exception is the sentence. */
template <typename F> static int attempt(char why[LINK_WHY_SIZE], int error, F fn)
{
	try {
		fn();
		return 0;
	} catch (const std::exception &e) {
		(void)snprintf(why, LINK_WHY_SIZE, "Gloo: %s", e.what());
	} catch (...) {
		(void)snprintf(why, LINK_WHY_SIZE, "Gloo threw something that is no exception");
	}
	return error;
}

/*
 * Gloo's thread of a link catches nothing, and throws if the peer breaks its protocol. That must
 * end the link, which falls silent and is named by the watch, and not this process, which would be
 * blamed instead. Nothing was unwound: that thread and those that wait for its locks stay blocked.
 * On the loop's thread it aborts: otherwise the agent would wait for ever.
 */
[[noreturn]] static void on_terminate()
{
	char why[LINK_WHY_SIZE];

	if (gettid() == getpid() || !std::current_exception())
		std::abort();
	(void)attempt(why, 0, [] { std::rethrow_exception(std::current_exception()); });
	log_error("a link is silent from now on: %s", why);
	for (;;)
		(void)pause();
}

static std::string digits_of(const struct sockaddr_storage &address)
{
	char host[NI_MAXHOST];
	int r = getnameinfo((const struct sockaddr *)&address, sizeof(address), host, sizeof(host),
			    nullptr, 0, NI_NUMERICHOST);

	if (r != 0)
		throw std::runtime_error(gai_strerror(r));
	return host;
}

static struct gloo_link *of(struct link *l)
{
	return static_cast<struct gloo_link *>(l);
}

static const struct gloo_link *of(const struct link *l)
{
	return static_cast<const struct gloo_link *>(l);
}

static int gloo_link_make(const struct link_form *form, struct link **ret, char why[LINK_WHY_SIZE])
{
	(void)std::set_terminate(on_terminate);
	return attempt(why, -EIO, [&] {
		auto l = std::make_unique<struct gloo_link>();
		gloo::transport::tcp::attr attributes;

		attributes.hostname = digits_of(form->address);
		l->other = form->is_first ? 1 : 0;
		l->device = gloo::transport::tcp::CreateDevice(attributes);
		l->context = l->device->createContext(1 - l->other, 2);
		l->context->setTimeout(FOR_EVER);
		l->hello = l->context->createPair(l->other)->address().bytes();
		if (l->hello.size() > LINK_HELLO_MAX)
			throw std::runtime_error("its addresses are longer than expected");
		*ret = l.release();
	});
}

static size_t gloo_link_hello(const struct link *l, uint8_t ret[LINK_HELLO_MAX])
{
	memcpy(ret, of(l)->hello.data(), of(l)->hello.size());
	return of(l)->hello.size();
}

static int gloo_link_hello_place(const struct link *l, const uint8_t *hello, size_t size,
				 struct sockaddr_storage *ret, char why[LINK_WHY_SIZE])
{
	return attempt(why, -EPIPE, [&] {
		if (size != of(l)->hello.size())
			throw std::runtime_error("its hello is of another release of it, or with "
						 "TLS; set the same security on both nodes");
		*ret = Address(std::vector<char>(hello, hello + size)).getSockaddr();
	});
}

/* It has the same offset in both families. */
static in_port_t port_of(const struct sockaddr_storage &a)
{
	return ((const struct sockaddr_in *)&a)->sin_port;
}

static bool is_same_place(const struct sockaddr_storage &a, const struct sockaddr_storage &b)
{
	return a.ss_family == b.ss_family && port_of(a) == port_of(b) &&
	       digits_of(a) == digits_of(b);
}

/*
 * Gloo sets a timeout on a socket once a link uses it. Its newer releases accept every peer, which
 * nothing else distinguishes.
 */
static bool is_in_use(int fd)
{
	struct timeval timeout = {};
	socklen_t size = sizeof(timeout);

	return getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, &size) == 0 &&
	       std::chrono::seconds(timeout.tv_sec) == FOR_EVER;
}

/*
 * Gloo does not expose its sockets: that of this link is connected, and has the port of one of the
 * ends.
 */
static bool is_socket_of(int fd, const std::vector<char> &ours, const std::vector<char> &theirs)
{
	struct sockaddr_storage here = {}, there = {};
	socklen_t here_size = sizeof(here), there_size = sizeof(there);

	if (getsockname(fd, (struct sockaddr *)&here, &here_size) < 0 ||
	    getpeername(fd, (struct sockaddr *)&there, &there_size) < 0 ||
	    (here.ss_family != AF_INET && here.ss_family != AF_INET6) || !is_in_use(fd))
		return false;
	return is_same_place(here, Address(ours).getSockaddr()) ||
	       is_same_place(there, Address(theirs).getSockaddr());
}

static int find_socket(const std::vector<char> &ours, const std::vector<char> &theirs)
{
	std::unique_ptr<DIR, int (*)(DIR *)> folder(opendir("/proc/self/fd"), closedir);

	while (const struct dirent *entry = folder ? readdir(folder.get()) : nullptr) {
		int fd = atoi(entry->d_name);

		if (entry->d_name[0] != '.' && is_socket_of(fd, ours, theirs))
			return fcntl(fd, F_DUPFD_CLOEXEC, 3);
	}
	return -1;
}

static int gloo_link_connect(struct link *base, const char *node, const uint8_t *hello, size_t size,
			     char why[LINK_WHY_SIZE])
{
	struct gloo_link *l = of(base);

	(void)node; /* Gloo does not authenticate */
	return attempt(why, -EPIPE, [&] {
		std::vector<char> theirs(hello, hello + size);
		int fd;

		l->context->getPair(l->other)->connect(theirs);
		fd = find_socket(l->hello, theirs);
		if (fd < 0)
			throw std::runtime_error("its socket cannot be found");
		l->fd = fd;
	});
}

static int gloo_link_fd(const struct link *l)
{
	return of(l)->fd;
}

/* Gloo only reads what it sends, but its parameter is not const. */
static std::unique_ptr<struct gloo_transfer> begin(struct gloo_link *l, const void *bytes,
						   size_t size, bool is_send)
{
	auto t = std::make_unique<struct gloo_transfer>();

	t->link = l;
	t->is_send = is_send;
	t->buffer = l->context->createUnboundBuffer(const_cast<void *>(bytes), size);
	return t;
}

static int gloo_link_send(struct link *l, uint64_t slot, const void *from, size_t size,
			  struct transfer **ret, char why[LINK_WHY_SIZE])
{
	return attempt(why, -EPIPE, [&] {
		auto t = begin(of(l), from, size, true);

		t->buffer->send(of(l)->other, slot);
		*ret = t.release();
	});
}

static int gloo_link_receive(struct link *l, uint64_t slot, void *to, size_t size,
			     struct transfer **ret, char why[LINK_WHY_SIZE])
{
	return attempt(why, -EPIPE, [&] {
		auto t = begin(of(l), to, size, false);

		t->buffer->recv(of(l)->other, slot);
		*ret = t.release();
	});
}

static int gloo_transfer_finish(struct transfer *base, char why[LINK_WHY_SIZE])
{
	std::unique_ptr<struct gloo_transfer> t(static_cast<struct gloo_transfer *>(base));
	struct gloo_link *l = of(t->link);

	return attempt(why, -EPIPE, [&] {
		uint64_t size = t->buffer->size;

		if (t->is_send ? !t->buffer->waitSend(FOR_EVER) : !t->buffer->waitRecv(FOR_EVER))
			throw std::runtime_error("it was aborted");
		l->sent += t->is_send ? gloo_planned(1, size) : gloo_planned_back(1);
		l->received += t->is_send ? gloo_planned_back(1) : gloo_planned(1, size);
	});
}

static void gloo_link_count(const struct link *l, uint64_t *ret_received, uint64_t *ret_sent)
{
	*ret_received = of(l)->received;
	*ret_sent = of(l)->sent;
}

const struct link_ops gloo_link_ops = {
	.explains = false,
	.make = gloo_link_make,
	.hello = gloo_link_hello,
	.hello_place = gloo_link_hello_place,
	.connect = gloo_link_connect,
	.fd = gloo_link_fd,
	.send = gloo_link_send,
	.receive = gloo_link_receive,
	.finish = gloo_transfer_finish,
	.refusal = nullptr,
	.count = gloo_link_count,
	.traffic = nullptr,
};

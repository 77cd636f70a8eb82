/*
 * Gloo
 *
 * Each state is a device of Gloo, with a thread, and a pair for each other node. Calls of Gloo that block run on another
 * thread, while the thread of the caller sleeps where signals interrupt it. The bytes that a node sends to another one in an
 * exchange are a stream, cut into chunks of CHUNK_SIZE, each a message of Gloo. Thus both ends cut alike however their
 * segments are cut. A chunk within one segment moves from and to the memory of the caller, others are copied.
 *
 * No exception leaves this file, and no transfer outlives the call that began it.
 */
extern "C" {
/* Functions have the names of structs. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#include "libclient/train/nodes/engine.h"
#pragma GCC diagnostic pop
}

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <dirent.h>
#include <exception>
#include <fcntl.h>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <memory>
#include <mutex>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdexcept>
#include <string>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace tcp = gloo::transport::tcp;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace
{

constexpr auto TICK = milliseconds(ENGINE_TICK_MS);
/* Checks end waits: a timeout of Gloo breaks all connections. */
constexpr auto FOR_EVER = std::chrono::hours(24 * 90);
constexpr uint64_t CHUNK_SIZE = 1 << 20;
constexpr size_t DEPTH = 4; /* chunks of a stream that are under way */
constexpr uint64_t FRAME_SIZE = 48; /* of Gloo, before a message and in notices of either end */
constexpr int DESCRIPTORS_MAX = 65536;
constexpr uint64_t WATCH_SLOT = UINT64_MAX;
/* A slot is the number of an exchange, and below it the size of the stream: ends that disagree never meet in one. */
constexpr unsigned SLOT_SIZE_BITS = 40;

/* Gloo's texts begin with a line of its source, in brackets. */
const char *without_place(const char *text)
{
	const char *end = text[0] == '[' ? strstr(text, "] ") : nullptr;

	return end ? end + 2 : text;
}

/* Runs `fn`, and returns its result; an exception becomes `error` and its text a sentence. */
template <typename F> int attempt(char why[ENGINE_WHY_SIZE], int error, F fn)
{
	why[0] = '\0';
	try {
		return fn();
	} catch (const std::exception &e) {
		(void)snprintf(why, ENGINE_WHY_SIZE, "%s", without_place(e.what()));
	} catch (...) {
		(void)snprintf(why, ENGINE_WHY_SIZE, "Gloo threw something that is no exception");
	}
	return error;
}

/* Runs `fn`; the text of its exceptions begins with the node. */
template <typename F> auto with_node(uint32_t node, F fn)
{
	try {
		return fn();
	} catch (const std::exception &e) {
		throw std::runtime_error("node " + std::to_string(node) + ": " +
					 without_place(e.what()));
	}
}

/* Handlers of the process must not run on threads that are made here. */
class without_signals
{
      public:
	without_signals()
	{
		sigset_t all;

		(void)sigfillset(&all);
		for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT})
			(void)sigdelset(&all, fault);
		(void)pthread_sigmask(SIG_SETMASK, &all, &before);
	}
	~without_signals()
	{
		(void)pthread_sigmask(SIG_SETMASK, &before, nullptr);
	}

      private:
	sigset_t before;
};

/* A message that is sent or received; it must outlive its connection. */
class message
{
      public:
	message(gloo::transport::Context &context, void *data, size_t size)
		: buffer(context.createUnboundBuffer(data, size))
	{
	}
	void begin_send(uint32_t node, uint64_t slot)
	{
		is_send = true;
		buffer->send((int)node, slot);
	}
	void begin_receive(uint32_t node, uint64_t slot)
	{
		buffer->recv((int)node, slot);
	}
	/* True once it is complete, false after stop_wait(). */
	bool wait()
	{
		return is_send ? buffer->waitSend(FOR_EVER) : buffer->waitRecv(FOR_EVER);
	}
	/* Throws unless it is complete. Breaks all connections then. */
	void check_complete()
	{
		const auto little = milliseconds(1);

		/* False: another thread has ended the wait, whether it was complete or not. */
		while (!(is_send ? buffer->waitSend(little) : buffer->waitRecv(little)))
			;
	}
	/* Ends the wait of another thread, or the next one. */
	void stop_wait()
	{
		if (is_send)
			buffer->abortWaitSend();
		else
			buffer->abortWaitRecv();
	}

      private:
	std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
	bool is_send = false;
};

/*
 * Sockets of Gloo, which a child of this process must not keep open: their peers would not notice that it died. Gloo closes them
 * when it likes, so that a number may be that of another file: the inode is not. A child that is forked while a connection is
 * made may have its socket: Gloo names it to nobody, and a fork() cannot wait for a peer. Descriptors of epoll, which children
 * have too, keep no connection open.
 */
class sockets
{
      public:
	static sockets &all()
	{
		static auto &s = *new sockets; /* other threads may outlive destructors */

		return s;
	}
	/* The connection between these two addresses, one of which has another port; and what listens at ours. */
	void add(const std::vector<char> &ours, const std::vector<char> &theirs);
	void forget_closed();

      private:
	struct held {
		int fd;
		ino_t inode;

		bool is_open() const
		{
			struct stat st;

			return look_at(fd, &st) && S_ISSOCK(st.st_mode) && st.st_ino == inode;
		}
	};

	/*
	 * By its name, as another thread may close the number, or reuse it: either answer is right. Without /proc it has
	 * no name.
	 */
	static bool look_at(int fd, struct stat *ret)
	{
		char path[32];

		(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		return stat(path, ret) == 0 ||
		       (access("/proc/self/fd", F_OK) < 0 && fstat(fd, ret) == 0);
	}
	sockets()
	{
		(void)pthread_atfork(fork_begins, fork_ends, fork_ends_in_child);
	}
	static void fork_begins()
	{
		all().mutex.lock();
	}
	static void fork_ends()
	{
		all().mutex.unlock();
	}
	static void fork_ends_in_child();

	std::mutex mutex; /* protects the others */
	std::vector<struct held> list;
};

void sockets::fork_ends_in_child()
{
	for (const auto &s : all().list)
		if (s.is_open())
			(void)close(s.fd);
	fork_ends();
}

void sockets::forget_closed()
{
	std::lock_guard<std::mutex> lock(mutex);

	list.erase(std::remove_if(list.begin(), list.end(),
				  [](const struct held &s) { return !s.is_open(); }),
		   list.end());
}

bool is_at(const struct sockaddr_storage &a, const std::vector<char> &address)
{
	const struct sockaddr_storage b = address.empty() ? sockaddr_storage{}
							  : tcp::Address(address).getSockaddr();
	const auto *six_a = (const struct sockaddr_in6 *)&a,
		   *six_b = (const struct sockaddr_in6 *)&b;
	const auto *four_a = (const struct sockaddr_in *)&a,
		   *four_b = (const struct sockaddr_in *)&b;

	if (a.ss_family != b.ss_family)
		return false;
	if (a.ss_family == AF_INET6)
		return six_a->sin6_port == six_b->sin6_port &&
		       memcmp(&six_a->sin6_addr, &six_b->sin6_addr, sizeof(six_a->sin6_addr)) == 0;
	return a.ss_family == AF_INET && four_a->sin_port == four_b->sin_port &&
	       four_a->sin_addr.s_addr == four_b->sin_addr.s_addr;
}

/* Numbers that may be open: without /proc those that a process may have, up to a bound. */
std::vector<int> descriptors()
{
	std::unique_ptr<DIR, int (*)(DIR *)> folder(opendir("/proc/self/fd"), closedir);
	std::vector<int> found;

	while (const struct dirent *entry = folder ? readdir(folder.get()) : nullptr)
		if (entry->d_name[0] != '.')
			found.push_back(atoi(entry->d_name));
	for (int fd = 0; !folder && fd < std::min(getdtablesize(), DESCRIPTORS_MAX); fd++)
		found.push_back(fd);
	return found;
}

/* Gloo does not tell its sockets. */
void sockets::add(const std::vector<char> &ours, const std::vector<char> &theirs)
{
	for (int fd : descriptors()) {
		struct sockaddr_storage here = {}, there = {};
		socklen_t here_size = sizeof(here), there_size = sizeof(there);
		struct stat st;

		if (getsockname(fd, (struct sockaddr *)&here, &here_size) < 0)
			continue;
		(void)getpeername(fd, (struct sockaddr *)&there, &there_size);
		if (!(is_at(here, ours) || is_at(there, theirs)) || !look_at(fd, &st))
			continue;
		(void)fcntl(fd, F_SETFD, FD_CLOEXEC);

		std::lock_guard<std::mutex> lock(mutex);
		list.push_back({fd, st.st_ino});
	}
}

/* Something that blocks. */
class task
{
      public:
	virtual ~task() = default;
	/* On the thread of a worker. */
	virtual void run() = 0;
	/* On another thread, every tick while it runs, and with `is_over` once more: then run() must return. */
	virtual void tick(bool is_over) = 0;
};

/* A thread for tasks. No signal reaches it, so that Gloo may write to peers that are gone. */
class worker
{
      public:
	worker();
	~worker();
	/* Returns what the check returned, or throws what the task threw. */
	int run(task &t, engine_check *check, void *data);

      private:
	void work();
	int wait(task &t, engine_check *check, void *data);
	void give(task *t, bool ends);

	std::mutex mutex; /* protects the next three */
	std::condition_variable given;
	task *current = nullptr;
	bool is_over = false;
	std::exception_ptr failure; /* of the task */
	int ended_fd; /* the task has ended */
	std::thread thread;
};

worker::worker() : ended_fd(eventfd(0, EFD_CLOEXEC))
{
	const without_signals blocked;

	if (ended_fd < 0)
		throw std::runtime_error(strerror(errno));
	try {
		thread = std::thread([this] { work(); });
	} catch (...) {
		(void)close(ended_fd);
		throw;
	}
}

worker::~worker()
{
	give(nullptr, true);
	thread.join();
	(void)close(ended_fd);
}

void worker::give(task *t, bool ends)
{
	std::lock_guard<std::mutex> lock(mutex);

	current = t;
	is_over = ends;
	failure = nullptr;
	given.notify_one();
}

void worker::work()
{
	std::unique_lock<std::mutex> lock(mutex);

	for (;;) {
		given.wait(lock, [this] { return current || is_over; });
		if (is_over)
			return;
		task &t = *current;
		lock.unlock();
		try {
			t.run();
			lock.lock();
		} catch (...) {
			lock.lock();
			failure = std::current_exception();
		}
		current = nullptr;
		(void)eventfd_write(ended_fd, 1); /* it counts to one */
	}
}

int worker::wait(task &t, engine_check *check, void *data)
{
	auto due = steady_clock::now() + TICK;
	struct pollfd ended = {.fd = ended_fd, .events = POLLIN, .revents = 0};
	int r = 0;

	for (;;) {
		auto left = std::chrono::ceil<milliseconds>(due - steady_clock::now());
		int n = poll(&ended, 1, r != 0 ? -1 : std::max(0, (int)left.count()));

		if (n > 0)
			return r;
		if (r != 0)
			continue;
		r = check(data, n < 0);
		t.tick(r != 0);
		due = steady_clock::now() + TICK;
	}
}

int worker::run(task &t, engine_check *check, void *data)
{
	eventfd_t once;
	int r;

	give(&t, false);
	r = wait(t, check, data);
	(void)eventfd_read(ended_fd, &once); /* it is there */

	std::lock_guard<std::mutex> lock(mutex);
	if (r == 0 && failure)
		std::rethrow_exception(std::exchange(failure, nullptr));
	failure = nullptr;
	return r;
}

/*
 * Stops Gloo's thread while another thread begins messages
 *
 * Such a call holds the lock of its pair while it writes to the socket. Gloo's thread never waits for that lock: it asks epoll
 * again, and epoll returns the same event at once. A write wakes the peer. If the peer runs on the processor of the caller, the
 * caller still has the lock and Gloo's thread polls until the caller runs again. See findings/gloo-polls-for-locks.sh.
 */
class loop_stop : private tcp::Handler
{
      public:
	explicit loop_stop() : fd(eventfd(0, EFD_CLOEXEC))
	{
		if (fd < 0)
			throw std::runtime_error(strerror(errno));
	}
	/* The thread of each device has ended. */
	~loop_stop() override
	{
		(void)close(fd);
	}
	void add_to(tcp::Device &device)
	{
		device.registerDescriptor(fd, EPOLLIN, this);
	}
	/* Runs `fn`; one thread at a time calls it. Gloo's thread stops before its next turn, at the latest. */
	template <typename F> void run(F fn)
	{
		struct use {
			class loop_stop &stop;

			explicit use(class loop_stop &stop_) : stop(stop_)
			{
				stop.set(true);
			}
			~use()
			{
				stop.set(false);
			}
		} scope(*this);

		(void)eventfd_write(fd, 1); /* its thread empties it */
		fn();
	}

      private:
	/* A call that breaks a connection waits for another turn of this thread. */
	void handleEvents(int) override
	{
		std::unique_lock<std::mutex> lock(mutex);
		eventfd_t n;

		if (is_free.wait_for(lock, TICK, [this] { return !is_in_use; }))
			(void)eventfd_read(fd, &n); /* it is there */
	}
	void set(bool is_in_use_)
	{
		std::lock_guard<std::mutex> lock(mutex);

		is_in_use = is_in_use_;
		if (!is_in_use)
			is_free.notify_one();
	}

	std::mutex mutex; /* protects the next one */
	bool is_in_use = false;
	std::condition_variable is_free;
	int fd;
};

struct mesh {
	uint32_t node, n_nodes;
	class loop_stop loop_stop; /* outlives the thread of the device */
	std::shared_ptr<gloo::transport::Device> device;
	std::shared_ptr<gloo::transport::Context> context;
	size_t address_size;
	/*
	 * By node, received by none. Gloo reports a lost connection to messages that wait, but not to the one that it
	 * was moving.
	 */
	std::vector<std::unique_ptr<message>> watches;
	std::atomic<uint32_t> missing; /* node; n_nodes: none in particular */
	std::atomic<uint64_t> moved{0}; /* chunks */
	class worker worker;

	mesh(const struct sockaddr_storage *address, uint32_t node_, uint32_t n_nodes_,
	     struct engine_hello *ret);
	~mesh();
	/* Throws if the connection to a peer is lost. */
	void check_peer(uint32_t peer);
	/* Gloo uses no memory of messages any more. */
	void disconnect();
	template <typename F> void for_peers(F fn) const
	{
		for (uint32_t i = 0; i < n_nodes; i++)
			if (i != node)
				fn(i);
	}
};

std::string digits_of(const struct sockaddr_storage &address)
{
	char host[NI_MAXHOST];
	int r = getnameinfo((const struct sockaddr *)&address, sizeof(address), host, sizeof(host),
			    nullptr, 0, NI_NUMERICHOST);

	if (r != 0)
		throw std::runtime_error(gai_strerror(r));
	return host;
}

mesh::mesh(const struct sockaddr_storage *address, uint32_t node_, uint32_t n_nodes_,
	   struct engine_hello *ret)
	: node(node_), n_nodes(n_nodes_), watches(n_nodes_), missing(n_nodes_)
{
	const without_signals blocked;
	tcp::attr attributes;

	attributes.hostname = digits_of(*address);
	device = tcp::CreateDevice(attributes);
	loop_stop.add_to(static_cast<tcp::Device &>(*device));
	context = device->createContext((int)node, (int)n_nodes);
	context->setTimeout(FOR_EVER);
	address_size = tcp::Address().bytes().size();
	if (n_nodes * address_size > sizeof(ret->bytes))
		throw std::runtime_error("its addresses are longer than expected");
	ret->size = (uint32_t)(n_nodes * address_size);
	memset(ret->bytes, 0, ret->size);
	for_peers([&](uint32_t i) {
		const auto bytes = context->createPair((int)i)->address().bytes();

		sockets::all().add(bytes, {});
		memcpy(ret->bytes + i * address_size, bytes.data(), address_size);
	});
}

void mesh::check_peer(uint32_t peer)
{
	watches[peer]->stop_wait();
	(void)watches[peer]->wait();
}

void mesh::disconnect()
{
	for_peers([this](uint32_t i) { context->getPair((int)i).reset(); });
	sockets::all().forget_closed();
}

mesh::~mesh()
{
	disconnect();
}

/* The place in segments that a chunk begins at. */
struct place {
	const struct weightd_segment *segment;
	uint64_t offset;
};

/* Calls `fn` with each part of `size` bytes from a place on, and moves the place behind them. */
template <typename F> void for_parts(struct place &at, uint64_t size, F fn)
{
	while (size) {
		uint64_t part = std::min(size, at.segment->size - at.offset);

		fn((char *)at.segment->data + at.offset, part);
		size -= part;
		at.offset += part;
		if (at.offset == at.segment->size)
			at = {at.segment + 1, 0};
	}
}

struct chunk {
	struct place begin;
	std::vector<char> copy; /* of one in several segments */
	std::unique_ptr<message> moving;
};

/* Bytes from one node to another one in an exchange. */
class stream
{
      public:
	stream(uint32_t peer_, bool is_send_, const struct weightd_segment *segments, uint32_t n,
	       uint64_t number)
		: peer(peer_), is_send(is_send_), next{segments, 0}, size(0)
	{
		for (uint32_t i = 0; i < n; i++)
			size += segments[i].size;
		rest = size;
		slot = number << SLOT_SIZE_BITS | (size & ((1ull << SLOT_SIZE_BITS) - 1));
	}
	bool is_done() const
	{
		return rest == 0 && under_way.empty();
	}
	/* Makes messages of as many chunks as there may be under way. */
	void prepare(gloo::transport::Context &context)
	{
		while (rest && under_way.size() < DEPTH)
			prepare_next(context);
	}
	bool is_prepared() const
	{
		return n_begun < under_way.size();
	}
	/* Begins those that were prepared. */
	void begin();
	/* The chunk that ends first; there is one unless the stream is done. */
	message &first()
	{
		return *under_way.front().moving;
	}
	void end_first();

	const uint32_t peer;

      private:
	void prepare_next(gloo::transport::Context &context);

	const bool is_send;
	struct place next;
	uint64_t size, rest, slot;
	std::deque<chunk> under_way;
	size_t n_begun = 0; /* of these, the first ones */
};

void stream::prepare_next(gloo::transport::Context &context)
{
	uint64_t chunk_size = std::min(rest, CHUNK_SIZE);
	struct chunk c;
	char *data;

	while (next.segment->size == next.offset)
		next = {next.segment + 1, 0};
	c.begin = next;
	if (next.segment->size - next.offset >= chunk_size) {
		data = (char *)next.segment->data + next.offset;
		for_parts(next, chunk_size, [](char *, uint64_t) {});
	} else {
		c.copy.resize(chunk_size);
		data = c.copy.data();
		for_parts(next, chunk_size, [&](const char *part, uint64_t part_size) {
			if (is_send)
				memcpy(data, part, part_size);
			data += part_size;
		});
		data = c.copy.data();
	}
	c.moving = std::make_unique<message>(context, data, chunk_size);
	under_way.push_back(std::move(c));
	rest -= chunk_size;
}

void stream::begin()
{
	for (; is_prepared(); n_begun++) {
		message &m = *under_way[n_begun].moving;

		if (is_send)
			m.begin_send(peer, slot);
		else
			m.begin_receive(peer, slot);
	}
}

void stream::end_first()
{
	struct chunk &c = under_way.front();
	const char *from = c.copy.data();

	if (!is_send)
		for_parts(c.begin, c.copy.size(), [&](char *part, uint64_t part_size) {
			memcpy(part, from, part_size);
			from += part_size;
		});
	under_way.pop_front();
	n_begun--;
}

class exchange : public task
{
      public:
	exchange(struct mesh &mesh_) : mesh(mesh_)
	{
	}
	void add(uint64_t number, const struct weightd_transfer &t)
	{
		streams.emplace_back(t.node, false, t.receive, t.n_receive, number);
		streams.emplace_back(t.node, true, t.send, t.n_send, number);
	}
	void run() override;
	void tick(bool ends) override;

      private:
	bool wait(message &m);
	void begin(stream &s);
	bool end_first(stream &s);
	bool is_lost(uint32_t peer, std::string &ret_why);
	void end_stream_of_lost(stream &s, const std::string &why);
	void watch_peers();

	struct mesh &mesh;
	std::deque<stream> streams;
	std::mutex mutex; /* protects the others */
	message *waited_for = nullptr;
	bool is_over = false;
};

void exchange::tick(bool ends)
{
	std::lock_guard<std::mutex> lock(mutex);

	is_over = ends;
	if (waited_for)
		waited_for->stop_wait();
}

/* True if it is complete, false after each tick. */
bool exchange::wait(message &m)
{
	struct waiting {
		exchange &e;

		void set(message *waited_for)
		{
			std::lock_guard<std::mutex> lock(e.mutex);

			e.waited_for = e.is_over ? nullptr : waited_for;
		}
		~waiting()
		{
			set(nullptr);
		}
	} scope = {*this};

	scope.set(&m);
	return waited_for && m.wait();
}

void exchange::begin(stream &s)
{
	s.prepare(*mesh.context);
	if (s.is_prepared())
		mesh.loop_stop.run([&] { s.begin(); });
}

bool exchange::is_lost(uint32_t peer, std::string &ret_why)
{
	try {
		mesh.check_peer(peer);
		return false;
	} catch (const std::exception &e) {
		ret_why = e.what();
		return true;
	}
}

/* A peer may leave as soon as its streams are done, which these are too, then. */
void exchange::end_stream_of_lost(stream &s, const std::string &why)
{
	try {
		while (!s.is_done()) {
			s.first().check_complete();
			s.end_first();
			begin(s);
		}
	} catch (const std::exception &) {
		throw std::runtime_error(why);
	}
}

void exchange::watch_peers()
{
	std::string why;

	for (auto &s : streams)
		if (!s.is_done() && is_lost(s.peer, why))
			with_node(s.peer, [&] { end_stream_of_lost(s, why); });
}

/* False: the exchange is over. */
bool exchange::end_first(stream &s)
{
	mesh.missing = s.peer;
	while (!with_node(s.peer, [&] { return wait(s.first()); })) {
		{
			std::lock_guard<std::mutex> lock(mutex);

			if (is_over)
				return false;
		}
		watch_peers();
		if (s.is_done())
			return true;
	}
	s.end_first();
	mesh.moved++;
	with_node(s.peer, [&] { begin(s); });
	return true;
}

/* Streams have the same size more or less, so that they may wait for each other. */
void exchange::run()
{
	bool is_done = false;

	for (auto &s : streams)
		s.prepare(*mesh.context);
	mesh.loop_stop.run([&] {
		for (auto &s : streams)
			with_node(s.peer, [&] { s.begin(); });
	});
	while (!is_done) {
		is_done = true;
		for (auto &s : streams) {
			if (s.is_done())
				continue;
			is_done = false;
			if (!end_first(s))
				return;
		}
	}
}

class connecting : public task
{
      public:
	connecting(struct mesh &mesh_, const struct engine_hello *all_) : mesh(mesh_), all(all_)
	{
	}
	void run() override;
	void tick(bool ends) override;

      private:
	void connect(uint32_t i);

	struct mesh &mesh;
	const struct engine_hello *all;
	std::atomic<bool> is_over{false};
};

void connecting::tick(bool ends)
{
	if (!ends)
		return;
	is_over = true;
	/* That wakes the thread. */
	mesh.for_peers([this](uint32_t i) { mesh.context->getPair((int)i)->close(); });
}

void connecting::connect(uint32_t i)
{
	static char never[1];
	auto address = [&](uint32_t of, uint32_t for_) {
		const char *at = (const char *)all[of].bytes + for_ * mesh.address_size;

		return std::vector<char>(at, at + mesh.address_size);
	};

	mesh.missing = i;
	if (all[i].size != mesh.n_nodes * mesh.address_size)
		throw std::runtime_error("it has another release of Gloo");
	mesh.context->getPair((int)i)->connect(address(i, mesh.node));
	sockets::all().add(address(mesh.node, i), address(i, mesh.node));
	mesh.watches[i] = std::make_unique<message>(*mesh.context, never, sizeof(never));
	mesh.loop_stop.run([&] { mesh.watches[i]->begin_receive(i, WATCH_SLOT); });
}

void connecting::run()
{
	mesh.for_peers([this](uint32_t i) {
		if (!is_over)
			with_node(i, [&] { connect(i); });
	});
}

int engine_open(const struct sockaddr_storage *address, uint32_t node, uint32_t n_nodes, void **ret,
		struct engine_hello *ret_hello, char why[ENGINE_WHY_SIZE])
{
	return attempt(why, -EIO, [&] {
		*ret = new mesh(address, node, n_nodes, ret_hello);
		return 0;
	});
}

/* Runs a task that makes or uses connections, and breaks them if it fails. */
template <typename T>
int run_task(struct mesh &m, T &t, engine_check *check, void *data, char why[ENGINE_WHY_SIZE])
{
	int r = attempt(why, -EPIPE, [&] { return m.worker.run(t, check, data); });

	m.missing = m.n_nodes;
	if (r != 0)
		m.disconnect();
	return r;
}

int engine_connect(void *state, const struct engine_hello *all, engine_check *check, void *data,
		   char why[ENGINE_WHY_SIZE])
{
	auto &m = *(struct mesh *)state;
	connecting t(m, all);

	return run_task(m, t, check, data, why);
}

int engine_exchange(void *state, uint64_t number, const struct weightd_transfer *transfers,
		    uint32_t n, engine_check *check, void *data, char why[ENGINE_WHY_SIZE])
{
	auto &m = *(struct mesh *)state;
	exchange t(m);

	int r = attempt(why, -EPIPE, [&] {
		for (uint32_t i = 0; i < n; i++)
			t.add(number, transfers[i]);
		return 0;
	});
	return r == 0 ? run_task(m, t, check, data, why) : r;
}

uint32_t engine_missing(const void *state)
{
	return ((const struct mesh *)state)->missing;
}

uint64_t engine_moved(const void *state)
{
	return ((const struct mesh *)state)->moved;
}

int engine_watch(void *state, char why[ENGINE_WHY_SIZE])
{
	auto &m = *(struct mesh *)state;

	return attempt(why, -EPIPE, [&] {
		m.for_peers([&](uint32_t i) { with_node(i, [&] { m.check_peer(i); }); });
		return 0;
	});
}

void engine_close(void *state)
{
	delete (struct mesh *)state;
}

uint64_t count_chunks(uint64_t size)
{
	return size / CHUNK_SIZE + (size % CHUNK_SIZE != 0);
}

/* A notice and a header for each message that is sent, a notice for each that is received. */
uint64_t engine_count_wire(uint64_t sent, uint64_t received)
{
	return sent + (2 * count_chunks(sent) + count_chunks(received)) * FRAME_SIZE;
}

} // namespace

extern "C" {
extern const struct engine weightd_train_gloo;
const struct engine weightd_train_gloo = {
	.name = "Gloo",
	.open = engine_open,
	.connect = engine_connect,
	.exchange = engine_exchange,
	.missing = engine_missing,
	.moved = engine_moved,
	.watch = engine_watch,
	.close = engine_close,
	.count_wire = engine_count_wire,
	.wire_connect = FRAME_SIZE,
};
}

#!/bin/bash
# Gloo's thread polls while another thread is in send() or recv(), also while the processor of that thread does something else.
#
# UnboundBuffer::send() and recv() hold the lock of a pair while they write to its socket. Gloo's thread (gloo/transport/tcp,
# Pair::handleEvents) only tries to take that lock. If it fails, the thread returns to epoll_wait(), which reports the same event
# at once, as it is level-triggered. On a busy machine this takes a time slice again and again: the write wakes the peer, a peer
# of this machine takes the processor of the writer, its answer wakes Gloo's thread, and that polls until the writer runs again.
# With 2 to 4 nodes on two processors this was half of the processor time of all of them.
# Releases up to that of 2026-04 do so. A handler of the user in the same loop (registerDescriptor() of
# gloo::transport::tcp::Device) can put Gloo's thread to sleep for the time of such calls.
#
# Here a page fault stops the writer: the bytes that it sends lie in memory that userfaultfd(2) has yet to fill.
#
# Seen with Gloo 0.0~git20220518 of Debian 12 on Linux 6.18, as root:
#   a call is stopped for 500 ms, and Gloo's thread uses a processor, or waits for one, for 500 ms of them
# The script fails if that is less than 400 ms.
set -euo pipefail

for needed in "$(command -v g++ || true)" /usr/include/gloo/transport/tcp/device.h; do
	[ -e "$needed" ] || { echo "needs g++ and the headers of Gloo (apt-get install g++ libgloo-dev)" >&2; exit 2; }
done
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cat >"$folder/polls.cc" <<'CC'
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <linux/userfaultfd.h>
#include <memory>
#include <poll.h>
#include <set>
#include <string>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

namespace tcp = gloo::transport::tcp;

constexpr size_t PAGE = 4096;
constexpr auto STOPPED = std::chrono::milliseconds(500);

static void check(bool holds, const char *what)
{
	if (!holds) {
		perror(what);
		exit(2);
	}
}

static std::set<std::string> threads()
{
	std::set<std::string> names;

	for (const auto &task : std::filesystem::directory_iterator("/proc/self/task"))
		names.insert(task.path().filename());
	return names;
}

/* One of two ends in this process. */
struct end {
	std::shared_ptr<gloo::transport::Device> device;
	std::shared_ptr<gloo::transport::Context> context;
	std::string thread; /* of Gloo */
	int other;

	explicit end(int rank) : other(1 - rank)
	{
		const auto before = threads();
		tcp::attr attributes;

		attributes.hostname = "127.0.0.1";
		device = tcp::CreateDevice(attributes);
		context = device->createContext(rank, 2);
		context->setTimeout(std::chrono::seconds(60));
		context->createPair(other);
		for (const auto &name : threads())
			if (!before.count(name))
				thread = name;
	}
	std::unique_ptr<gloo::transport::UnboundBuffer> buffer(void *data, size_t size)
	{
		return context->createUnboundBuffer(data, size);
	}
	/* Time for which Gloo's thread ran, or waited for a processor. */
	uint64_t busy_ns() const
	{
		uint64_t ran = 0, waited = 0;

		std::ifstream("/proc/self/task/" + thread + "/schedstat") >> ran >> waited;
		return ran + waited;
	}
};

/* Keeps Gloo's thread until it is given back. */
struct keeper : tcp::Handler {
	int begins = eventfd(1, 0), kept = eventfd(0, 0), ends = eventfd(0, 0);

	void handleEvents(int) override
	{
		eventfd_t n;

		eventfd_read(begins, &n);
		eventfd_write(kept, 1);
		eventfd_read(ends, &n);
	}
};

/* A page that a thread cannot read before it is filled. */
static char *absent_page(int uffd)
{
	struct uffdio_api api = {.api = UFFD_API, .features = 0, .ioctls = 0};
	char *page = (char *)mmap(nullptr, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct uffdio_register area = {.range = {(uint64_t)page, PAGE}, .mode = UFFDIO_REGISTER_MODE_MISSING, .ioctls = 0};

	check(page != MAP_FAILED && ioctl(uffd, UFFDIO_API, &api) == 0 && ioctl(uffd, UFFDIO_REGISTER, &area) == 0, "userfaultfd");
	return page;
}

int main()
{
	const int uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
	struct keeper keeper;
	struct end a(0), b(1);
	char first = 1, second = 2, received[PAGE];

	check(uffd >= 0, "userfaultfd");
	char *page = absent_page(uffd);
	std::thread connects([&] { b.context->getPair(0)->connect(a.context->getPair(1)->address().bytes()); });
	a.context->getPair(1)->connect(b.context->getPair(0)->address().bytes());
	connects.join();

	/* The end b waits for the page, and a has received its notice of that: it precedes the byte. */
	auto page_in = b.buffer(received, PAGE), byte_out = b.buffer(&first, 1), byte_in = a.buffer(&second, 1);
	page_in->recv(0, 1);
	byte_out->send(0, 2);
	byte_in->recv(1, 2);
	byte_in->waitRecv();
	byte_out->waitSend();

	/* Bytes of b lie at the socket of a when a begins to send the page. */
	eventfd_t n;
	static_cast<tcp::Device &>(*a.device).registerDescriptor(keeper.begins, EPOLLIN, &keeper);
	eventfd_read(keeper.kept, &n);
	auto late = b.buffer(&first, 1);
	late->send(0, 3);
	auto page_out = a.buffer(page, PAGE);
	std::thread sends([&] { page_out->send(1, 1); });
	struct pollfd fault = {uffd, POLLIN, 0};
	check(poll(&fault, 1, 10000) == 1, "no page fault");

	const uint64_t before = a.busy_ns();
	eventfd_write(keeper.ends, 1);
	std::this_thread::sleep_for(STOPPED);
	const long busy_ms = (long)((a.busy_ns() - before) / 1000000);

	struct uffdio_zeropage fill = {.range = {(uint64_t)page, PAGE}, .mode = 0, .zeropage = 0};
	check(ioctl(uffd, UFFDIO_ZEROPAGE, &fill) == 0, "UFFDIO_ZEROPAGE");
	sends.join();
	page_in->waitRecv();
	printf("a call is stopped for %ld ms, and Gloo's thread uses a processor, or waits for one, for %ld ms of them\n", (long)STOPPED.count(), busy_ms);
	if (busy_ms < 400)
		fprintf(stderr, "Gloo's thread does not poll: this has changed\n");
	fflush(nullptr);
	_exit(busy_ms < 400); /* with threads of Gloo */
}
CC
g++ -std=c++17 -O2 -o "$folder/polls" "$folder/polls.cc" -lgloo -lpthread
"$folder/polls"

/*
 * gloo_broadcast RANK RANKS ADDRESS FOLDER BYTES: Gloo's own broadcast from rank 0, after a barrier. Prints the
 * seconds until this rank has all, and the processor time that it used.
 */
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sys/resource.h>
#include <vector>

#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

static double cpu_seconds()
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

int main(int argc, char **argv)
{
	if (argc != 6)
		return 2;
	int rank = atoi(argv[1]), ranks = atoi(argv[2]);
	size_t n_bytes = strtoull(argv[5], nullptr, 10);
	gloo::transport::tcp::attr attributes;

	attributes.hostname = argv[3];
	auto device = gloo::transport::tcp::CreateDevice(attributes);
	gloo::rendezvous::FileStore store(argv[4]);
	auto context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);

	context->connectFullMesh(store, device);
	std::vector<uint8_t> memory(n_bytes, rank == 0 ? 7 : 0);
	gloo::BarrierOptions barrier(context);
	gloo::barrier(barrier);

	auto started = std::chrono::steady_clock::now();
	double cpu = cpu_seconds();
	gloo::BroadcastOptions options(context);
	options.setOutput(memory.data(), memory.size());
	options.setRoot(0);
	gloo::broadcast(options);
	std::chrono::duration<double> taken = std::chrono::steady_clock::now() - started;
	cpu = cpu_seconds() - cpu;

	if (memory.front() != 7 || memory.back() != 7)
		return 1;
	gloo::barrier(barrier);
	printf("%f %f %d\n", taken.count(), cpu, rank);
	return 0;
}

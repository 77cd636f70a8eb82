/*
 * weightd-cuda
 *
 * The allocator of GPU memory: the only program on the server's side that loads libcuda. weightd
 * starts it when it is needed and ends it when it is idle or does not answer; clients lose nothing
 * with it. With --hold it does hold memory, of the older kind, and outlives weightd: see holder.h.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "ipc/base/release.h"
#include "ipc/channel.h"
#include "ipc/device.h"
#include "server/cuda/allocation.h"
#include "server/cuda/gpu.h"
#include "server/cuda/holder.h"
#include "server/cuda/protocol.h"

#define EXIT_USAGE 2

static const char usage[] = "usage: weightd-cuda --probe | --help | --version\n"
			    "\n"
			    "Allocate GPU memory for weightd, which starts this when needed.\n"
			    "CUDA_VISIBLE_DEVICES can limit the GPUs that are used.\n"
			    "\n"
			    "  --probe    print the GPUs and their features\n"
			    "  --help     print this and exit\n"
			    "  --version  print the release and exit\n";

/* --- replies to weightd --- */

static void gpu_reply(struct gpus *g, const struct allocator_request *q, struct allocator_reply *ret)
{
	if (q->index >= g->n) {
		ret->error = -ENOENT;
		return;
	}
	gpu_describe(g, &g->gpus[q->index], &ret->device);
}

static void tell_free(struct gpus *g, struct gpu *gpu, struct allocator_reply *ret)
{
	memcpy(ret->name, gpu->name, sizeof(ret->name));
	ret->error = gpu_enter(g, gpu, ret->why);
	if (ret->error < 0)
		return;
	ret->error = gpu_memory(g, &ret->free, &ret->total, ret->why);
	gpu_leave(g);
}

/* `holder` is NULL in one that holds nothing, which is not asked to. */
static void request_answer(struct gpus *g, struct holder *holder, const struct allocator_request *q,
			   struct allocator_reply *ret, int *ret_fd)
{
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");
	struct gpu *gpu;

	ret->error = gpus_open(g, ret->why);
	if (ret->error < 0)
		return;
	if (q->op == ALLOCATOR_DEVICE) {
		gpu_reply(g, q, ret);
		return;
	}
	gpu = gpus_find(g, q->uuid);
	if (!gpu) {
		ret->error = -ENODEV;
		(void)snprintf(
			ret->why, sizeof(ret->why),
			"weightd sees no such GPU%s%.60s%s; weightctl devices lists those it sees",
			visible ? " (its CUDA_VISIBLE_DEVICES is '" : "", visible ? visible : "",
			visible ? "')" : "");
	} else if (q->op == ALLOCATOR_ALLOCATE) {
		allocation_make(g, gpu, q, ret, ret_fd);
	} else if (q->op == ALLOCATOR_HOLD) {
		holder_make(holder, gpu, q, ret, ret_fd);
	} else {
		tell_free(g, gpu, ret);
	}
}

static int request_serve(struct gpus *g, struct holder *holder, const struct channel_packet *packet)
{
	struct allocator_reply reply = {.protocol = ALLOCATOR_PROTOCOL};
	struct allocator_request q;
	cleanup(fd_closep) int fd = -1;

	if (!allocator_request_ok(packet->data, packet->size, packet->n_fds))
		return -EPROTO;
	memcpy(&q, packet->data, sizeof(q));
	if (!holder && q.op == ALLOCATOR_HOLD)
		return -EPROTO;
	reply.op = q.op;
	reply.serial = q.serial;
	request_answer(g, holder, &q, &reply, &fd);
	return channel_send(ALLOCATOR_FD, &reply, sizeof(reply), &fd, fd >= 0);
}

/* Protection from the kernel's OOM killer is meant for weightd: this process must be killed first. */
static void be_killed_first(void)
{
	cleanup(fd_closep) int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

	if (fd >= 0)
		(void)!write(fd, "0", 1); /* it stays protected then, which does little harm */
}

static bool is_started_by_weightd(const char *option)
{
	if (fcntl(ALLOCATOR_FD, F_SETFD, FD_CLOEXEC) == 0)
		return true;
	fprintf(stderr, "weightd-cuda: no descriptor 3: only weightd can use %s\n", option);
	return false;
}

/* Answers the next request. 0: weightd has closed its end; negative: an error, which was logged. */
static int request_receive(struct gpus *g, struct holder *holder)
{
	struct channel_packet packet;
	int r = channel_receive(ALLOCATOR_FD, 0, &packet);

	if (r > 0) {
		r = request_serve(g, holder, &packet);
		channel_packet_deinit(&packet);
		r = r < 0 ? r : 1;
	}
	if (r == -EPIPE || r == -ECONNRESET)
		return 0;
	if (r < 0)
		fprintf(stderr, "weightd-cuda: %s\n",
			r == -EPROTO ? "weightd has another protocol; restart it" : strerror(-r));
	return r;
}

static int requests_serve(struct gpus *g)
{
	int r;

	/* Also when we hang in the driver, and would not see weightd close its end. */
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	be_killed_first();
	if (!is_started_by_weightd("--serve"))
		return EXIT_USAGE;
	while ((r = request_receive(g, NULL)) > 0)
		;
	return r == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* Memory stays held after weightd has exited: other processes use it. */
static int holder_serve(struct gpus *g)
{
	struct holder h;
	int fd = ALLOCATOR_FD, r;

	holder_init(&h, g);
	if (!is_started_by_weightd("--hold"))
		return EXIT_USAGE;
	(void)setsid(); /* signals of weightd's terminal are not for us; the leader of a group stays one */
	while ((r = holder_wait(&h, fd)) > 0)
		if (request_receive(g, &h) <= 0)
			fd = fd_close(fd);
	return r == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* --- output for a person --- */

static void print_gpu(const struct wire_device_record *d)
{
	char total[NUM_SIZE_MAX], free[NUM_SIZE_MAX], granularity[NUM_SIZE_MAX];

	printf("%u: %.76s\n   %s\n", d->index, d->name, d->device);
	printf("   %s, %s free, granularity %s; capability %u.%u, CUDA %u.%u\n",
	       num_format_size(total, d->total), num_format_size(free, d->free),
	       num_format_size(granularity, d->granularity), d->capability / 10, d->capability % 10,
	       d->driver / 1000, d->driver % 1000 / 10);
	printf("   descriptors %s, ipc %s, fabric %s, rdma %s%s\n",
	       d->flags & WIRE_DEVICE_CUDA ? "yes" : "no", d->flags & WIRE_DEVICE_IPC ? "yes" : "no",
	       d->flags & WIRE_DEVICE_FABRIC ? "yes" : "no",
	       d->flags & WIRE_DEVICE_RDMA ? "yes" : "no",
	       d->flags & WIRE_DEVICE_MIG ? ", a part of a GPU (MIG)" : "");
	if (d->why[0])
		printf("   cannot be used: %s\n", d->why);
}

static int gpus_print(struct gpus *g)
{
	char why[CUDA_WHY_SIZE];

	if (gpus_open(g, why) < 0) {
		fprintf(stderr, "weightd-cuda: no GPU can be used: %s\n", why);
		return EXIT_FAILURE;
	}
	for (unsigned i = 0; i < g->n; i++) {
		struct wire_device_record record;

		gpu_describe(g, &g->gpus[i], &record);
		print_gpu(&record);
	}
	return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
	static struct gpus g;
	const char *what = argc == 2 ? argv[1] : "";

	/* So that the numbers are those of nvidia-smi; the default puts the fastest first. */
	if (setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 1) < 0)
		return EXIT_FAILURE;
	if (!strcmp(what, "--serve"))
		return requests_serve(&g);
	if (!strcmp(what, "--hold"))
		return holder_serve(&g);
	if (!strcmp(what, "--probe"))
		return gpus_print(&g);
	if (!strcmp(what, "--version")) {
		puts("weightd-cuda " RELEASE);
		return EXIT_SUCCESS;
	}
	if (!strcmp(what, "--help")) {
		fputs(usage, stdout);
		return EXIT_SUCCESS;
	}
	fputs(usage, stderr);
	return EXIT_USAGE;
}

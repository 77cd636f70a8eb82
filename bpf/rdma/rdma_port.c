/*
 * A file that is missing or malformed is an unknown number: devices differ in what they count, and one may be removed
 * while it is read.
 */
#include "bpf/rdma/rdma_port.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bpf/rdma/sysfs_line.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"

#define FOLDER "class/infiniband"
#define LINE_SIZE 128

/* clang-format off */
/* The second path is of EFA, which counts bytes and no words of four. */
#define TRAFFIC(key_, path_, unit_, else_path_) \
	{.key = (key_), .path = (path_), .unit = (unit_), .kind = RDMA_PORT_TRAFFIC, .else_path = (else_path_)}
#define OTHER(key_, path_, kind_) {.key = (key_), .path = (path_), .unit = 1, .kind = (kind_)}

const struct rdma_port_count rdma_port_counts[RDMA_PORT_COUNTS_MAX + 1] = {
	TRAFFIC("xmit_bytes", "counters/port_xmit_data", 4, "hw_counters/tx_bytes"),
	TRAFFIC("recv_bytes", "counters/port_rcv_data", 4, "hw_counters/rx_bytes"),
	TRAFFIC("xmit_packets", "counters/port_xmit_packets", 1, "hw_counters/tx_pkts"),
	TRAFFIC("recv_packets", "counters/port_rcv_packets", 1, "hw_counters/rx_pkts"),
	OTHER("xmit_wait", "counters/port_xmit_wait", RDMA_PORT_CONGESTION),
	OTHER("np_cnp_sent", "hw_counters/np_cnp_sent", RDMA_PORT_CONGESTION),
	OTHER("np_ecn_marked_roce_packets", "hw_counters/np_ecn_marked_roce_packets", RDMA_PORT_CONGESTION),
	OTHER("rp_cnp_handled", "hw_counters/rp_cnp_handled", RDMA_PORT_CONGESTION),
	OTHER("symbol_error", "counters/symbol_error", RDMA_PORT_ERROR),
	OTHER("link_error_recovery", "counters/link_error_recovery", RDMA_PORT_ERROR),
	OTHER("link_downed", "counters/link_downed", RDMA_PORT_ERROR),
	OTHER("port_rcv_errors", "counters/port_rcv_errors", RDMA_PORT_ERROR),
	OTHER("port_xmit_discards", "counters/port_xmit_discards", RDMA_PORT_ERROR),
	OTHER("local_link_integrity_errors", "counters/local_link_integrity_errors", RDMA_PORT_ERROR),
	OTHER("excessive_buffer_overrun_errors", "counters/excessive_buffer_overrun_errors", RDMA_PORT_ERROR),
	OTHER("out_of_sequence", "hw_counters/out_of_sequence", RDMA_PORT_ERROR),
	OTHER("packet_seq_err", "hw_counters/packet_seq_err", RDMA_PORT_ERROR),
	OTHER("implied_nak_seq_err", "hw_counters/implied_nak_seq_err", RDMA_PORT_ERROR),
	OTHER("duplicate_request", "hw_counters/duplicate_request", RDMA_PORT_ERROR),
	OTHER("local_ack_timeout_err", "hw_counters/local_ack_timeout_err", RDMA_PORT_ERROR),
	OTHER("rnr_nak_retry_err", "hw_counters/rnr_nak_retry_err", RDMA_PORT_ERROR),
	OTHER("out_of_buffer", "hw_counters/out_of_buffer", RDMA_PORT_ERROR),
};
/* clang-format on */

/* As messages and labels of this process name them. */
static bool is_name(const char *s)
{
	size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");

	return n > 0 && !s[n] && n < sizeof(((struct rdma_port *)NULL)->device);
}

/* A number that JSON cannot hold is unknown. */
static uint64_t read_count(int fd, const char *path, unsigned unit)
{
	char line[LINE_SIZE];
	uint64_t n;

	if (!path || !sysfs_line_read(fd, path, line, sizeof(line)) ||
	    num_parse(line, 10, &n) < 0 || __builtin_mul_overflow(n, unit, &n) || n > INT64_MAX)
		return RDMA_PORT_UNKNOWN;
	return n;
}

static void read_counts(int fd, struct rdma_port *p)
{
	for (int i = 0; i < RDMA_PORT_COUNTS_MAX; i++) {
		const struct rdma_port_count *c = &rdma_port_counts[i];

		p->counts[i] = read_count(fd, c->path, c->unit);
		if (p->counts[i] == RDMA_PORT_UNKNOWN)
			p->counts[i] = read_count(fd, c->else_path, 1);
	}
}

/* "4: ACTIVE" */
static void read_state(int fd, struct rdma_port *p)
{
	char line[sizeof(p->state)];
	const char *word;

	if (!sysfs_line_read(fd, "state", line, sizeof(line)))
		return;
	word = strstr(line, ": ");
	(void)strcpy(p->state, word ? word + 2 : line);
	for (char *c = p->state; *c; c++)
		*c = (char)tolower((unsigned char)*c);
}

/* "100 Gb/sec (4X EDR)", "2.5 Gb/sec (1X SDR)" */
static void read_rate(int fd, struct rdma_port *p)
{
	char *end;
	double rate;

	p->rate_bits = RDMA_PORT_UNKNOWN;
	if (!sysfs_line_read(fd, "rate", p->rate, sizeof(p->rate))) {
		p->rate[0] = '\0';
		return;
	}
	rate = isdigit((unsigned char)p->rate[0]) ? strtod(p->rate, &end) : 0;
	if (rate > 0 && rate < 1e6 && !strncmp(end, " Gb/sec", strlen(" Gb/sec")))
		p->rate_bits = (uint64_t)(rate * 1e9 + 0.5);
}

static void read_gids(int fd, struct rdma_port *p)
{
	char path[32], gid[40];
	unsigned n = 0;

	for (unsigned i = 0; i < RDMA_PORT_GIDS_MAX; i++) {
		(void)snprintf(path, sizeof(path), "gids/%u", i);
		if (sysfs_line_read(fd, path, gid, sizeof(gid)) && gid[strspn(gid, "0:")])
			(void)strcpy(p->gids[n++], gid);
	}
}

static void read_line(int fd, const char *path, char *ret, size_t size)
{
	if (!sysfs_line_read(fd, path, ret, size))
		ret[0] = '\0';
}

static void read_port(int fd, const char *device, unsigned number, struct rdma_port *ret)
{
	*ret = (struct rdma_port){.number = number, .ns = num_now_ns()};
	(void)strcpy(ret->device, device);
	read_line(fd, "link_layer", ret->link_layer, sizeof(ret->link_layer));
	read_line(fd, "gid_attrs/ndevs/0", ret->netdev, sizeof(ret->netdev));
	read_state(fd, ret);
	read_rate(fd, ret);
	read_gids(fd, ret);
	read_counts(fd, ret);
}

struct found {
	struct rdma_port *ports;
	size_t n;
	const char *device; /* the device with the ports that are read */
};

static int port_compare(const void *left, const void *right)
{
	const struct rdma_port *a = left, *b = right;
	int r = strverscmp(a->device, b->device);

	return r ? r : (a->number > b->number) - (a->number < b->number);
}

/* Takes `fd`. Each entry of the folder that is called as something of ours. */
static void for_each(int fd, void (*fn)(struct found *f, int fd, const char *name), struct found *f)
{
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *entry;

	if (!dir) {
		(void)fd_close(fd);
		return;
	}
	while (f->n < RDMA_PORTS_MAX && (entry = readdir(dir)))
		if (is_name(entry->d_name))
			fn(f, dirfd(dir), entry->d_name);
	(void)closedir(dir);
}

static int open_folder(int dir_fd, const char *path)
{
	int fd = openat(dir_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

static void take_port(struct found *f, int dir_fd, const char *name)
{
	cleanup(fd_closep) int fd = open_folder(dir_fd, name);
	uint64_t number;

	if (fd >= 0 && num_parse(name, 10, &number) == 0 && number > 0 && number <= INT32_MAX)
		read_port(fd, f->device, (unsigned)number, &f->ports[f->n++]);
}

static void take_device(struct found *f, int dir_fd, const char *name)
{
	cleanup(fd_closep) int fd = open_folder(dir_fd, name);

	f->device = name;
	if (fd >= 0)
		for_each(open_folder(fd, "ports"), take_port, f);
}

int rdma_ports_read(const char *sysfs, struct rdma_port **ret, size_t *ret_n)
{
	cleanup(fd_closep) int fd = open_folder(AT_FDCWD, sysfs);
	int folder_fd = fd < 0 ? fd : open_folder(fd, FOLDER);
	struct found f = {};

	if (folder_fd < 0)
		return folder_fd;
	f.ports = calloc(RDMA_PORTS_MAX, sizeof(*f.ports));
	if (!f.ports) {
		(void)fd_close(folder_fd);
		return -ENOMEM;
	}
	for_each(folder_fd, take_device, &f);
	qsort(f.ports, f.n, sizeof(*f.ports), port_compare);
	*ret = f.ports;
	*ret_n = f.n;
	return 0;
}

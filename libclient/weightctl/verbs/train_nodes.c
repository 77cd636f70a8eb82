/*
 * The ranks of several machines meet at the address of node 0: those of torch at MASTER_PORT, and those of weightd at the ports
 * behind it, two for each rank of a node (struct weightd_nodes). All of these ports must exist.
 */
#include "libclient/weightctl/verbs/train_nodes.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "weightd-train.h"

#define PORT_DEFAULT 29500 /* that of torchrun */
#define RANK_PORTS 2 /* of steps, and of checkpoints */

static bool is_ipv6(const char *host)
{
	char digits[INET6_ADDRSTRLEN];
	struct in6_addr address;
	size_t n = strcspn(host, "%"); /* the interface follows */

	if (n >= sizeof(digits))
		return false;
	(void)snprintf(digits, sizeof(digits), "%.*s", (int)n, host);
	return inet_pton(AF_INET6, digits, &address) == 1;
}

static bool is_host(const char *host)
{
	for (const char *c = host; *c; c++)
		if (!isalnum((unsigned char)*c) && !strchr(".-:%_", *c))
			return false;
	return *host && (!strchr(host, ':') || is_ipv6(host));
}

/* The end of the host in "10.0.0.1:29500", "[fd00::1]:29500", "fd00::1" or "node0"; `ret_host` is its begin. NULL: none. */
static const char *find_host(const char *arg, const char **ret_host)
{
	const char *colon = strchrnul(arg, ':');

	*ret_host = arg + (*arg == '[');
	if (*arg == '[')
		return strchr(arg, ']');
	return *colon && strchr(colon + 1, ':') ? colon + strlen(colon) : colon;
}

void train_nodes_set_master(struct cli *cli, struct train_nodes *nodes, const char *arg)
{
	const char *host, *end = find_host(arg, &host), *rest = end ? end + (*end == ']') : "";

	if (end && end - host <= TRAIN_ADDRESS_MAX)
		(void)snprintf(nodes->address, sizeof(nodes->address), "%.*s", (int)(end - host),
			       host);
	if (!is_host(nodes->address) || (*rest && *rest != ':'))
		cli_usage(cli,
			  "--master wants the address of node 0, such as 10.0.0.1:29500, "
			  "[fd00::1]:29500 or node0, not '%s'",
			  arg);
	nodes->port = PORT_DEFAULT;
	if (*rest)
		nodes->port = (uint16_t)cli_number(cli, "the port of --master", rest + 1, 10, 1,
						   UINT16_MAX);
}

void train_nodes_check(struct cli *cli, const struct train_nodes *nodes, uint32_t n_ranks)
{
	const uint32_t n_ports = n_ranks * RANK_PORTS;

	if (!nodes->n && (nodes->node != UINT32_MAX || nodes->port))
		cli_usage(cli, "'%s' needs the number of nodes, --nodes N",
			  nodes->port ? "--master" : "--node");
	if (nodes->n && nodes->node == UINT32_MAX)
		cli_usage(cli, "--nodes needs the number of this one, --node 0 to %" PRIu32,
			  nodes->n - 1);
	if (nodes->n && nodes->node >= nodes->n)
		cli_usage(cli, "--node wants a number from 0 to %" PRIu32 ", not '%" PRIu32 "'",
			  nodes->n - 1, nodes->node);
	if (nodes->n > 1 && !nodes->port)
		cli_usage(cli, "--nodes needs the address of node 0, --master HOST");
	if (nodes->n > WEIGHTD_RANKS_MAX / n_ranks)
		cli_usage(cli,
			  "%" PRIu32 " nodes with %" PRIu32 " rank%s each are more than %d ranks",
			  nodes->n, n_ranks, n_ranks == 1 ? "" : "s", WEIGHTD_RANKS_MAX);
	if (nodes->n > 1 && nodes->port > UINT16_MAX - n_ports)
		cli_usage(cli,
			  "--master wants a port up to %" PRIu32 ", not %u: the %" PRIu32
			  " ports behind it are for the ranks",
			  UINT16_MAX - n_ports, nodes->port, n_ports);
}

/* A port of 127.0.0.1 that no process uses, or a negative errno. */
static int find_port(uint16_t *ret)
{
	struct sockaddr_in address = {
		.sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	socklen_t size = sizeof(address);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), r = 0;

	if (fd < 0)
		return -errno;
	if (bind(fd, (const struct sockaddr *)&address, size) < 0 ||
	    getsockname(fd, (struct sockaddr *)&address, &size) < 0)
		r = -errno;
	else
		*ret = ntohs(address.sin_port);
	(void)close(fd);
	return r;
}

int train_nodes_complete(struct train_nodes *nodes)
{
	if (!nodes->n)
		*nodes = (struct train_nodes){.n = 1};
	if (nodes->port)
		return 0;
	(void)strcpy(nodes->address, "127.0.0.1");
	return find_port(&nodes->port);
}

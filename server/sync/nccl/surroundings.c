#include "server/sync/nccl/surroundings.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t v4_of(const void *sockaddr)
{
	return ((const struct sockaddr_in *)sockaddr)->sin_addr.s_addr;
}

/* This machine has all addresses of the loopback network, and its interface has one of them. */
static bool has_address(const struct ifaddrs *i, const struct address *a)
{
	const void *theirs, *ours;

	if (!i->ifa_addr || i->ifa_addr->sa_family != a->at.ss_family)
		return false;
	if (a->at.ss_family == AF_INET) {
		const uint32_t differ = v4_of(i->ifa_addr) ^ v4_of(&a->at);

		return !(i->ifa_flags & IFF_LOOPBACK) ? !differ : !(differ & v4_of(i->ifa_netmask));
	}
	theirs = &((const struct sockaddr_in6 *)(const void *)i->ifa_addr)->sin6_addr;
	ours = &((const struct sockaddr_in6 *)(const void *)&a->at)->sin6_addr;
	return !memcmp(theirs, ours, sizeof(struct in6_addr));
}

/* "=eth0": exact match, no prefix. */
static int name_interface(const struct address *a, char ret[IF_NAMESIZE + 1],
			  char why[ENGINE_ORDER_WHY_SIZE])
{
	struct ifaddrs *all, *i;

	if (getifaddrs(&all) < 0) {
		(void)snprintf(why, ENGINE_ORDER_WHY_SIZE, "the interfaces cannot be listed: %s",
			       strerror(errno));
		return -errno;
	}
	for (i = all; i && !has_address(i, a); i = i->ifa_next)
		;
	if (i)
		(void)snprintf(ret, IF_NAMESIZE + 1, "=%s", i->ifa_name);
	freeifaddrs(all);
	if (i)
		return 0;
	(void)snprintf(why, ENGINE_ORDER_WHY_SIZE,
		       "no interface of this machine has the data address; set data-address in the "
		       "section [node] of sync.conf");
	return -EADDRNOTAVAIL;
}

int surroundings_set(const struct engine_order *o, char why[ENGINE_ORDER_WHY_SIZE])
{
	char interface[IF_NAMESIZE + 1];
	const bool is_v4 = o->address.at.ss_family == AF_INET;
	int r = name_interface(&o->address, interface, why);

	if (r < 0)
		return r;
	/* With NCCL_COMM_ID, a public number would be enough to connect. */
	(void)unsetenv("NCCL_COMM_ID");
	(void)setenv("NCCL_SOCKET_IFNAME", interface, 0);
	(void)setenv("NCCL_SOCKET_FAMILY", is_v4 ? "AF_INET" : "AF_INET6", 0);
	/* Nodes on one machine do not share memory, even if NCCL assumes so. */
	(void)setenv("NCCL_HOSTID", o->node, 0);
	/* It would listen for every peer, on one port for all engines of a node. */
	(void)setenv("NCCL_RAS_ENABLE", "0", 0);
	return 0;
}

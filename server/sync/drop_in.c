#include "server/sync/drop_in.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "server/sync/net/address.h"

#define RESOLV_CONF "/etc/resolv.conf"

static const char head[] =
	"# From %s, by weightd-sync --print-drop-in: packets from and to other\n"
	"# addresses are dropped. Save it in /etc/systemd/system/weightd-sync.service.d/, run\n"
	"# `systemctl daemon-reload` and `systemctl restart weightd-sync`. Print it again when\n"
	"# that file changes%s.\n"
	"[Service]\n"
	"IPAddressDeny=any\n"
	"IPAddressAllow=localhost\n";

static void allow(FILE *to, const struct sockaddr *at)
{
	char text[ADDRESS_TEXT_SIZE];

	(void)fprintf(to, "IPAddressAllow=%s\n", address_format_host(at, text));
}

/* --- This node ------------------------------------------------------------------------------------ */

/* The bytes of an address, or of a mask. */
static uint8_t *bytes_of(struct sockaddr *at, size_t *ret_n)
{
	*ret_n = at->sa_family == AF_INET6 ? 16 : 4;
	return at->sa_family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)at)->sin6_addr.s6_addr
					 : (uint8_t *)&((struct sockaddr_in *)(void *)at)->sin_addr;
}

/* The network of an interface: its address without the bits behind the mask. */
static void allow_network(FILE *to, const struct ifaddrs *interface)
{
	char text[ADDRESS_TEXT_SIZE];
	size_t n;
	uint8_t *address = bytes_of(interface->ifa_addr, &n);
	const uint8_t *mask = bytes_of(interface->ifa_netmask, &n);
	unsigned n_bits = 0;

	for (size_t i = 0; i < n; i++) {
		address[i] &= mask[i];
		n_bits += (unsigned)__builtin_popcount(mask[i]);
	}
	(void)fprintf(to, "IPAddressAllow=%s/%u\n", address_format_host(interface->ifa_addr, text),
		      n_bits);
}

static int print_data_address(FILE *to, const char *host, const struct address *at)
{
	struct ifaddrs *all, *one;

	if (getifaddrs(&all) < 0) {
		log_error("cannot list the addresses of this node: %s", strerror(errno));
		return -errno;
	}
	one = all;
	while (one && (!one->ifa_addr || !one->ifa_netmask ||
		       !address_same_host(one->ifa_addr, (const struct sockaddr *)&at->at)))
		one = one->ifa_next;
	if (one) {
		(void)fprintf(to, "# Network of data-address %s, on %s\n", host, one->ifa_name);
		allow_network(to, one);
	} else {
		log_error("no interface has [node] data-address %s, so that its network, with these "
			  "addresses of the other nodes, is unknown; set the interface up, or correct "
			  "the address",
			  host);
	}
	freeifaddrs(all);
	return one ? 0 : -EADDRNOTAVAIL;
}

/* Their data addresses are in the networks of ours; those at which they listen are in their sections. */
static int print_node(FILE *to, const struct config *c)
{
	const struct sockaddr *listen_at = (const struct sockaddr *)&c->listen_at.at;
	struct address at;
	int r;

	(void)fprintf(to, "# listen = %s\n", c->listen);
	if (!address_is_any(listen_at))
		allow(to, listen_at);
	for (unsigned i = 0; i < c->n_data_addresses; i++) {
		if (!address_from_digits(c->data_addresses[i], 1, &at) ||
		    address_same_host((struct sockaddr *)&at.at, listen_at))
			continue;
		r = print_data_address(to, c->data_addresses[i], &at);
		if (r < 0)
			return r;
	}
	return 0;
}

/* --- The others ----------------------------------------------------------------------------------- */

/* As the agent resolves it. */
static int print_name(FILE *to, const struct peer_config *peer)
{
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG};
	struct addrinfo *found;
	int e = getaddrinfo(peer->host, NULL, &hints, &found);

	if (e != 0) {
		log_error("cannot resolve '%s', the address of [peer %s]: %s; write its address in "
			  "digits, or print the drop-in when its name can be resolved",
			  peer->host, peer->name, gai_strerror(e));
		return -EHOSTUNREACH;
	}
	(void)fprintf(to, "# peer %s: addresses of %s\n", peer->name, peer->host);
	for (const struct addrinfo *one = found; one; one = one->ai_next)
		allow(to, one->ai_addr);
	freeaddrinfo(found);
	return 0;
}

static int print_peer(FILE *to, const struct peer_config *peer, bool *has_names)
{
	struct address at;

	if (address_from_digits(peer->host, peer->port, &at)) {
		(void)fprintf(to, "# peer %s\n", peer->name);
		allow(to, (struct sockaddr *)&at.at);
		return 0;
	}
	*has_names = true;
	return print_name(to, peer);
}

/* The agent resolves names each time that it connects. */
static void print_nameservers(FILE *to)
{
	FILE *file = fopen(RESOLV_CONF, "re");
	char line[1024], host[64];
	struct address at;

	while (file && fgets(line, sizeof(line), file)) {
		if (sscanf(line, " nameserver %63s", host) != 1 ||
		    !address_from_digits(host, 53, &at))
			continue;
		(void)fprintf(to, "# nameserver of " RESOLV_CONF ", for these names\n");
		allow(to, (struct sockaddr *)&at.at);
	}
	if (file)
		(void)fclose(file);
}

static int print_addresses(FILE *to, const struct config *c, bool *has_names)
{
	int r = print_node(to, c);

	for (unsigned i = 0; r == 0 && i < c->n_peers; i++)
		r = print_peer(to, &c->peers[i], has_names);
	if (r == 0 && *has_names)
		print_nameservers(to);
	return r;
}

int drop_in_print(const struct config *c)
{
	cleanup(freep) char *addresses = NULL;
	bool has_names = false;
	size_t size;
	FILE *to = open_memstream(&addresses, &size);
	int r = to ? print_addresses(to, c, &has_names) : -ENOMEM;

	if (to && fclose(to) != 0 && r == 0)
		r = -ENOMEM;
	if (r == -ENOMEM)
		log_error("out of memory");
	if (r < 0)
		return r;
	(void)printf(head, c->path, has_names ? ", or when an address of a name does" : "");
	if (fputs(addresses, stdout) < 0 || fflush(stdout) != 0) {
		r = -errno;
		log_error("cannot write to standard output: %s", strerror(-r));
	}
	return r;
}

#include "server/sync/stream/crowd.h"

#include <string.h>

#include "ipc/base/num.h"

struct crowd_member crowd_member(const struct sockaddr_storage *at)
{
	struct crowd_member m = {.since_ns = num_now_ns()};

	if (at->ss_family == AF_INET6) {
		m.host = ((const struct sockaddr_in6 *)at)->sin6_addr;
		return m;
	}
	m.host.s6_addr[10] = m.host.s6_addr[11] = 0xff;
	memcpy(&m.host.s6_addr[12], &((const struct sockaddr_in *)at)->sin_addr, 4);
	return m;
}

static size_t n_of_host(const struct crowd_member *members, size_t n, const struct in6_addr *host)
{
	size_t found = 0;

	for (size_t i = 0; i < n; i++)
		found += memcmp(&members[i].host, host, sizeof(*host)) == 0;
	return found;
}

size_t crowd_leaver(const struct crowd_member *members, size_t n)
{
	size_t leaver = 0, n_most = 0;

	for (size_t i = 0; i < n; i++) {
		size_t n_own = n_of_host(members, n, &members[i].host);

		if (n_own > n_most ||
		    (n_own == n_most && members[i].since_ns < members[leaver].since_ns)) {
			n_most = n_own;
			leaver = i;
		}
	}
	return leaver;
}

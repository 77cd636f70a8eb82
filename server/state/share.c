#include "server/state/share.h"

uint64_t share_limit(uint64_t whole)
{
	return whole / 2 > SHARE_LIMIT_MIN ? whole / 2 : SHARE_LIMIT_MIN;
}

uint64_t share_least(uint64_t whole)
{
	return whole / SHARE_USERS;
}

uint64_t share_of(uint64_t whole, unsigned n_users)
{
	if (n_users > SHARE_USERS)
		n_users = SHARE_USERS;
	return n_users > 0 ? whole / n_users : whole;
}

uint64_t share_open_to(uint64_t whole, bool is_admin, uint64_t holds)
{
	uint64_t for_users = whole - whole / SHARE_USERS;

	if (is_admin)
		return whole;
	return holds <= share_least(whole) ? for_users : for_users - whole / 4;
}

/*
 * Checks of weightd: the socket and the rights on it, the process that keeps its descriptors, memory, limits, GPUs.
 *
 * Without a connection only the first is possible.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libclient/weightctl/device.h"
#include "libclient/weightctl/doctor/check.h"
#include "libclient/weightctl/output/size.h"
#include "libclient/weightctl/output/user.h"

#define STORE_FULL 0.8 /* of the descriptors that may be kept */
#define MEMORY_LOW 0.05 /* of all memory */
#define DESCRIPTORS_SPARE 256 /* those of weightd itself and of some clients */
#define HUGE_LOOK (256u << 20) /* bytes of slots below which their share is no sign */
#define HUGE_LOW 0.5
#define SHMEM_FILE "/sys/kernel/mm/transparent_hugepage/shmem_enabled"

/* False: there is no server to ask. */
static bool check_socket(struct cli *cli, struct checks *c)
{
	int r;

	if (weightd_new(&cli->w) < 0)
		cli_out_of_memory();
	r = weightd_connect(cli->w, cli->socket);
	if (r >= 0)
		checks_add(c, "socket", CHECK_OK, NULL, "%s", weightd_socket(cli->w));
	else if (r == -EACCES)
		checks_add(c, "rights", CHECK_ERROR, weightd_error(cli->w),
			   "user %s may not connect", user_name(geteuid()));
	else
		checks_add(c, "socket", CHECK_ERROR, weightd_error(cli->w), "no weightd answers");
	return r >= 0;
}

static void check_release(struct cli *cli, struct checks *c)
{
	struct weightd_server server = {.size = sizeof(server)};
	char up[SIZE_TEXT_MAX];

	if (weightd_ping(cli->w, &server) < 0)
		checks_add(c, "weightd", CHECK_ERROR, weightd_error(cli->w), "does not reply");
	else if (strcmp(server.release, weightd_release()) != 0)
		checks_add(c, "weightd", CHECK_WARNING,
			   "install the same release of both, and restart weightd ('systemctl restart "
			   "weightd.service' keeps the weights)",
			   "release %s, weightctl has %s", server.release, weightd_release());
	else
		checks_add(c, "weightd", CHECK_OK, NULL, "release %s, up for %s", server.release,
			   size_duration(up, server.uptime_ns));
}

static void check_rights(const struct cli *cli, const struct weightd_health *h, struct checks *c)
{
	const char *admin = h->admin ? "administers all buffers" : "uses what it may read";
	char user[64];
	struct stat st;

	(void)snprintf(user, sizeof(user), "%s", user_name(geteuid()));
	if (stat(weightd_socket(cli->w), &st) < 0)
		checks_add(c, "rights", CHECK_OK, NULL, "user %s %s", user, admin);
	else if (st.st_mode & S_IWOTH)
		checks_add(c, "rights", CHECK_NOTE,
			   "a member of one group suffices: set SocketMode=0660 and SocketGroup= of "
			   "weightd.socket, or --socket-mode 0660",
			   "user %s %s; any user may connect", user, admin);
	else
		checks_add(c, "rights", CHECK_OK, NULL, "user %s %s; group: %s", user, admin,
			   user_group_name(st.st_gid));
}

static void check_keeper(const struct weightd_health *h, struct checks *c)
{
	switch (h->keeper) {
	case WEIGHTD_KEEPER_MANAGER:
		checks_add(c, "keeper", CHECK_OK, NULL,
			   "the service manager keeps the weights over restarts");
		break;
	case WEIGHTD_KEEPER_PARENT:
		checks_add(c, "keeper", CHECK_OK, NULL,
			   "weightd --keeper keeps the weights over restarts");
		break;
	case WEIGHTD_KEEPER_GONE:
		checks_add(c, "keeper", CHECK_ERROR,
			   "weightd creates no versions any more: save what matters (weightctl save), "
			   "and start weightd anew with its keeper, or under systemd",
			   "it ended: the weights die with this daemon");
		break;
	default:
		checks_add(c, "keeper", CHECK_WARNING,
			   "start weightd under systemd (systemctl enable --now weightd.socket "
			   "weightd.service), or as 'weightd --keeper'",
			   "none: the weights die with this daemon");
	}
}

static void check_store(const struct weightd_stat *stat, const struct weightd_health *h,
			struct checks *c)
{
	if (stat->n_quarantined)
		checks_add(
			c, "store", CHECK_WARNING,
			"the journal has the reason (journalctl -u weightd, action 'quarantine'); a "
			"newer weightd may read them; stopping weightd frees them, and all weights",
			"%" PRIu64 " kept descriptors match no buffer", stat->n_quarantined);
	if (!stat->store_max)
		return;
	if ((double)stat->store_used > STORE_FULL * (double)stat->store_max)
		checks_add(c, "store", CHECK_WARNING,
			   "remove versions (weightctl rm), keep fewer (weightctl load --keep), or "
			   "raise [store] max of weightd.conf and FileDescriptorStoreMax= of the unit",
			   "%" PRIu64 " of %" PRIu64 " descriptors are kept", stat->store_used,
			   stat->store_max);
	else if (h->max_descriptors < stat->store_max + DESCRIPTORS_SPARE)
		checks_add(c, "store", CHECK_WARNING,
			   "weightd cannot start again when the store is full: raise LimitNOFILE= of "
			   "weightd.service ('ulimit -n'), or lower [store] max",
			   "%" PRIu64 " may be kept, %" PRIu64 " opened", stat->store_max,
			   h->max_descriptors);
	else
		checks_add(c, "store", CHECK_OK, NULL, "%" PRIu64 " of %" PRIu64 " descriptors",
			   stat->store_used, stat->store_max);
}

static void check_memory(const struct weightd_stat *stat, const struct weightd_health *h,
			 struct checks *c)
{
	char free_text[SIZE_TEXT_MAX], all[SIZE_TEXT_MAX];
	cleanup(cli_freep) char *way = NULL;
	bool is_low = (double)h->headroom < MEMORY_LOW * (double)h->memory;

	if (asprintf(&way,
		     "remove versions (weightctl stat lists them), stop other programs, raise %s, or "
		     "lower [server] reserve of weightd.conf",
		     *h->limit ? h->limit : "the memory of this machine") < 0)
		cli_out_of_memory();
	(void)size_text(free_text, h->headroom);
	(void)size_text(all, h->memory);
	checks_add(c, "memory", is_low ? CHECK_WARNING : CHECK_OK, is_low ? way : NULL,
		   "%s of %s for new versions", free_text, all);
	if (*h->limit)
		checks_add(c, "cgroup", CHECK_OK, NULL, "%s is the limit", h->limit);
	else
		checks_add(c, "cgroup", CHECK_OK, NULL, "limits less than the machine does");
	if (stat->orphan_bytes)
		checks_add(c, "orphans", CHECK_NOTE,
			   "processes map dropped versions without a lease; 'weightctl stat' lists "
			   "the versions, and the memory is free once these processes end",
			   "%s in dropped versions", size_text(free_text, stat->orphan_bytes));
}

/* True if the file has `word` as its choice, "[word]". */
static bool is_chosen(const char *path, const char *word)
{
	char text[128] = "", choice[32];
	FILE *f = fopen(path, "re");

	if (!f)
		return false;
	if (!fgets(text, sizeof(text), f))
		*text = '\0';
	(void)fclose(f);
	(void)snprintf(choice, sizeof(choice), "[%s]", word);
	return strstr(text, choice);
}

static void check_huge_pages(struct cli *cli, struct checks *c)
{
	cleanup(cli_list_freep) struct weightd_list *slots = NULL;
	const struct weightd_slot_info *info;
	uint64_t allocated = 0, huge = 0;
	char size[SIZE_TEXT_MAX];

	if (weightd_list_slots(cli->w, NULL, &slots) < 0)
		return;
	for (size_t i = 0; (info = weightd_list_slot(slots, i)); i++) {
		if (strcmp(info->device, "host") != 0)
			continue;
		allocated += info->allocated;
		huge += info->huge_bytes;
	}
	if (access(SHMEM_FILE, F_OK) < 0)
		checks_add(c, "huge pages", CHECK_NOTE, NULL, "this kernel has none for memfds");
	else if (is_chosen(SHMEM_FILE, "deny"))
		checks_add(c, "huge pages", CHECK_WARNING,
			   "readers need more entries of the TLB: write 'never' or 'advise' to " SHMEM_FILE
			   "; weightd asks for huge pages itself",
			   "denied to memfds on this machine");
	else if (allocated > HUGE_LOOK && (double)huge < HUGE_LOW * (double)allocated)
		checks_add(c, "huge pages", CHECK_NOTE,
			   "free memory is in small pieces: load models early after the boot, or write "
			   "1 to /proc/sys/vm/compact_memory and load them again",
			   "%.0f %% of %s", 100.0 * (double)huge / (double)allocated,
			   size_text(size, allocated));
	else if (allocated)
		checks_add(c, "huge pages", CHECK_OK, NULL, "%.0f %% of %s",
			   100.0 * (double)huge / (double)allocated, size_text(size, allocated));
	else
		checks_add(c, "huge pages", CHECK_OK, NULL, "allowed");
}

static void check_gpus(struct cli *cli, struct checks *c)
{
	bool has_files = access("/dev/nvidiactl", F_OK) == 0;
	const struct weightd_device_info *info;
	const struct weightd_list *list;
	unsigned n = 0;
	uint32_t driver = 0;
	const char *why = NULL;

	if (device_list(cli, true, &list) < 0) {
		checks_add(c, "gpu", CHECK_WARNING, weightd_error(cli->w), "cannot be listed");
		return;
	}
	for (size_t i = 0; (info = weightd_list_device(list, i)); i++) {
		if (!strcmp(info->device, "host"))
			continue;
		if (*info->why) {
			why = info->why;
			continue;
		}
		n++;
		driver = info->driver;
	}
	if (why && (n || has_files))
		checks_add(c, "gpu", CHECK_WARNING, why, "%u of the GPUs can be used", n);
	else if (n)
		checks_add(c, "gpu", CHECK_OK, NULL, "%u, driver for CUDA %" PRIu32 ".%" PRIu32, n,
			   driver / 1000, driver % 1000 / 10);
	else
		checks_add(c, "gpu", CHECK_OK, NULL, "none on this machine");
}

void doctor_check_server(struct cli *cli, struct checks *c)
{
	struct weightd_health health = {.size = sizeof(health)};
	struct weightd_stat stat = {.size = sizeof(stat)};

	if (!check_socket(cli, c))
		return;
	check_release(cli, c);
	if (weightd_health(cli->w, &health) < 0 || weightd_stat(cli->w, &stat) < 0) {
		checks_add(c, "health", CHECK_ERROR, weightd_error(cli->w), "is not reported");
		return;
	}
	check_rights(cli, &health, c);
	check_keeper(&health, c);
	check_store(&stat, &health, c);
	check_memory(&stat, &health, c);
	check_huge_pages(cli, c);
	check_gpus(cli, c);
}

#include "libclient/train/plan/rank_status.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "libclient/train/plan/control.h"
#include "libclient/train/plan/sentence.h"

/* Words of a job as they were copied: nothing changes them any more. */
struct words {
	struct control_rank rank;
	struct control_status status;
};

static const char *const topics[CONTROL_TOPICS] = {
	[CONTROL_UNNAMED] = "",
	[CONTROL_GRADIENTS] = "gradients",
	[CONTROL_SUMS] = "sums",
	[CONTROL_PARAMETERS] = "parameters",
	[CONTROL_FIRST_VALUES] = "first values",
	[CONTROL_WRITTEN_VALUES] = "written values",
	[CONTROL_NODES] = "nodes",
	[CONTROL_UNITS] = "units",
};

const char *weightd_rank_phase_name(enum weightd_rank_phase phase)
{
	static const char *const names[] = {
		[WEIGHTD_RANK_GONE] = "gone",       [WEIGHTD_RANK_COMPUTING] = "computing",
		[WEIGHTD_RANK_WAITING] = "waiting", [WEIGHTD_RANK_UPDATING] = "updating",
		[WEIGHTD_RANK_DONE] = "done",
	};

	return (unsigned)phase < sizeof(names) / sizeof(*names) ? names[phase] : NULL;
}

uint64_t rank_status_size(const struct weightd_plan *p)
{
	return control_layout(p).buckets;
}

int rank_status_check(const struct weightd_plan *p, const uint8_t *words, uint64_t size,
		      const char *job)
{
	struct control_head head;

	if (size < rank_status_size(p))
		return train_fail(-EPROTOTYPE,
				  "part 0 of job '%s' has %llu bytes, and words of ranks need %llu",
				  job, (unsigned long long)size,
				  (unsigned long long)rank_status_size(p));
	memcpy(&head, words, sizeof(head));
	if (!head.magic)
		return train_fail(-ENODATA, "no rank of job '%s' has begun yet", job);
	if (head.magic != CONTROL_MAGIC || head.abi != CONTROL_ABI || head.n_ranks != p->n_ranks)
		return train_fail(
			-EPROTOTYPE,
			"the journal of job '%s' is not of this release of weightd-train (form %u, "
			"ours is %d); look at it with the release that its ranks have",
			job, head.abi, CONTROL_ABI);
	return 0;
}

static uint64_t get(const _Atomic uint64_t *word)
{
	return atomic_load_explicit(word, memory_order_relaxed);
}

static double seconds(uint64_t ns)
{
	return (double)ns / 1e9;
}

/* The word that decides: where the rank waits for its thread, that of the thread, if that waits for a rank. */
static uint64_t find_activity(const struct control_status *status, uint64_t *ret_began_ns)
{
	uint64_t now = get(&status->now), thread = get(&status->thread);
	uint64_t began_ns = control_activity_ns(now);

	*ret_began_ns = began_ns;
	if (control_activity_phase(now) != CONTROL_SUMMING ||
	    control_activity_phase(thread) != CONTROL_WAITING)
		return now;
	if (control_activity_ns(thread) > began_ns)
		*ret_began_ns = control_activity_ns(thread);
	return thread;
}

static enum weightd_rank_phase find_phase(uint64_t activity, int holder)
{
	enum control_phase phase = control_activity_phase(activity);

	if (phase == CONTROL_DONE)
		return WEIGHTD_RANK_DONE;
	if (!holder)
		return WEIGHTD_RANK_GONE;
	switch (phase) {
	case CONTROL_WAITING:
		return WEIGHTD_RANK_WAITING;
	case CONTROL_UPDATING:
	case CONTROL_SUMMING:
		return WEIGHTD_RANK_UPDATING;
	default:
		return WEIGHTD_RANK_COMPUTING; /* also one that joined, and has not come to its first word */
	}
}

static void read_wait(const struct weightd_plan *p, uint64_t activity,
		      struct weightd_rank_status *ret)
{
	uint32_t topic = control_activity_topic(activity), rank = control_activity_rank(activity);
	uint32_t n = topic == CONTROL_NODES ? p->n_nodes : p->n_ranks;

	ret->waits_for = rank < n ? rank : UINT32_MAX;
	if (topic < CONTROL_TOPICS)
		(void)snprintf(ret->what, sizeof(ret->what), "%s", topics[topic]);
}

static void read_numbers(const struct words *w, struct weightd_rank_status *ret)
{
	uint64_t loss = get(&w->status.loss);

	ret->step = get(&w->status.step);
	ret->loss = NAN;
	if (get(&w->status.has_loss))
		memcpy(&ret->loss, &loss, sizeof(loss));
	ret->computing_s = seconds(get(&w->status.computing_ns));
	ret->waiting_s = seconds(get(&w->status.waiting_ns));
	ret->updating_s = seconds(get(&w->status.updating_ns));
	ret->read = w->rank.traffic_read;
	ret->written = w->rank.traffic_written;
	ret->sent = w->rank.traffic_sent;
	ret->sent_replicas = w->rank.traffic_replicas;
}

/* A node of any number is not one of the mesh. */
static uint32_t mesh_rank(const struct weightd_plan *p, const uint8_t *words, uint32_t rank)
{
	struct control_head head;

	memcpy(&head, words, sizeof(head));
	return (head.node && head.node <= p->n_nodes ? head.node - 1 : 0) * p->n_ranks + rank;
}

void rank_status_read(const struct weightd_plan *p, const uint8_t *words, uint32_t rank, int holder,
		      uint64_t now_ns, struct weightd_rank_status *ret)
{
	const struct control_layout layout = control_layout(p);
	uint64_t activity, began_ns;
	struct words w;

	memcpy(&w.rank, words + layout.ranks + rank * sizeof(w.rank), sizeof(w.rank));
	memcpy(&w.status, words + layout.status + rank * sizeof(w.status), sizeof(w.status));
	activity = find_activity(&w.status, &began_ns);
	*ret = (struct weightd_rank_status){.size = sizeof(*ret),
					    .rank = rank,
					    .mesh_rank = mesh_rank(p, words, rank),
					    .pid = holder,
					    .phase = find_phase(activity, holder),
					    .waits_for = UINT32_MAX,
					    .since_s = NAN};
	if (ret->phase != WEIGHTD_RANK_GONE)
		ret->since_s = now_ns > began_ns ? seconds(now_ns - began_ns) : 0;
	if (ret->phase == WEIGHTD_RANK_WAITING)
		read_wait(p, activity, ret);
	read_numbers(&w, ret);
}

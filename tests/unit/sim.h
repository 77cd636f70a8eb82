/*
 * A world for agents: any number of them in one process and in virtual time, with connections that delay, are
 * cut and come back, with jobs that model weightd's versions and the engines of a chain, and with records
 * that survive a death. The same seed gives the same world.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/list.h"
#include "server/sync/agent.h"
#include "server/sync/base/ranges.h"
#include "sim_queue.h"

#define SIM_SECOND ((uint64_t)1000000000)
#define SIM_BUFFER "llama"

struct sim;

/* A version of one node's weightd. Content 0 is none. */
struct sim_version {
	char buffer[16];
	uint64_t number;
	uint64_t content;
	uint64_t n_bytes;
};

struct sim_node {
	struct sim *sim;
	unsigned index;
	char name[16];
	struct agent_config config;
	const char **peers;
	struct agent *agent; /* NULL: it is dead */
	json_t *commit_log; /* what it saved, in pieces; NULL: nothing yet */
	uint64_t clock_skew_ns; /* its clock is ahead */
	uint64_t over_ns; /* until when its first certificate is good, of sim::now_ns; 0: for ever */
	bool is_renewed; /* it signs with its second one, which has the same key */
	char renewed[24]; /* that one */
	uint64_t rate; /* bytes/s into it */
	uint64_t room_ns; /* that its sinks take to make room */

	struct sim_version versions[256]; /* the last ones, of weightd */
	unsigned n_versions;
	uint64_t last_number;

	struct list jobs;
	struct job *watch; /* of its weightd; not one of the others, as it has no end */
	uint64_t timer_ns;
	bool is_dying; /* in the middle of a call into its agent */
	unsigned n_saves;
	unsigned die_at_save; /* the how-manieth; 0: none */
	bool die_before_it; /* is written */
	bool saves_fail;
	bool disk_is_full; /* likewise, and there is a look before */
	bool jobs_hang; /* what they are told from now on they do not do */
	bool engines_hang; /* open, but move nothing */
	unsigned n_corrupt; /* epochs whose bytes arrive wrong, from now on */
	bool lies; /* its sinks say another root than that of what they made */
	bool sinks_fail; /* no memory */
	bool planners_fail; /* there is no such split */
	bool sources_fail; /* likewise, where they are to lend it and not only to look */
	bool copies_hang; /* of what its GPU has */
	bool compose_fails; /* no memory for a patch of several */
	bool compose_hangs;
	const char *local_why; /* what jobs of its weightd say when they fail; NULL: something short */
	bool is_silent; /* whatever it says is lost, while its kernel answers */

	uint64_t others; /* what its tensors without a mean have */
	uint64_t layout; /* which tensors its versions have */
	uint64_t n_received; /* bytes, over all engines */
	uint64_t n_received_again; /* that it had already */
	unsigned n_read; /* versions that its sources read to lend them */
	unsigned n_patched; /* sinks that made their version with a patch */
	char why[WHY_SIZE]; /* of the last sync that ended here */
	char outcome[16];
	json_t *end; /* the event */
	json_t *left; /* the event that it goes on for who is slow; told once */
	json_t *plan; /* the last one told, its pieces put together */
};

struct sim_options {
	unsigned n_nodes;
	unsigned n_publishers; /* the first ones; 0: one */
	unsigned n_addresses; /* of each for bytes, at most 2; 0: one */
	enum policy policy;
	uint64_t n_bytes; /* of a version; 0: 64 MiB */
	uint64_t n_changed; /* bytes of it that the one before had not; 0: all are others */
	uint64_t n_patch; /* bytes of a patch from one version to the next; 0: nobody makes any */
	uint64_t seed;
	bool is_quiet; /* without delays at random */
	bool as_frames; /* messages are encoded and decoded */
};

struct sim {
	struct sim_options options;
	uint64_t random;
	uint64_t now_ns;
	struct sim_node *nodes;
	struct group group;
	const char **names;
	struct sim_link *links; /* n * n, of which half is used */
	uint64_t n_messages;
	uint64_t n_frame_bytes;
	uint64_t longest_ns; /* that a sync took, of those that ended anywhere */
	uint64_t n_ids;
	uint64_t n_contents;
	uint64_t n_decided;
	uint64_t decided[4096]; /* contents that a publisher's record has */
	uint64_t pairs[4096][2]; /* of contents */
	/* Hears of each message before it arrives; false: it is lost. */
	bool (*on_message)(struct sim *s, unsigned from, unsigned to, const json_t *message);
	/* Likewise of each blob, in whose place it may put another. */
	void (*on_blob)(struct sim *s, struct event *e);
	void *userdata;
	const char *untrusted; /* an address; NULL: none is */
	struct sim_queue queue;
	struct memory **patches; /* all that ever were: descriptors of them may be anywhere */
	unsigned n_patches;
	struct sim_made *made; /* by several: all that ever was */
	unsigned n_made;
	struct list engines;
	bool ticks;
};

#define FILES_MANY 4096 /* descriptors that suffice for the largest simulations */
/* Skips the test where a process may not have as many descriptors. */
void sim_require_files(unsigned n);
struct sim *sim_new(const struct sim_options *options);
void sim_free(struct sim *s);

/* Random, below n. */
uint64_t sim_random(struct sim *s, uint64_t n);

void sim_start(struct sim *s, unsigned node);
void sim_kill(struct sim *s, unsigned node);
/* No packet passes between two nodes. */
void sim_cut(struct sim *s, unsigned i, unsigned j, bool is_cut);
/* Ends one of a node's jobs of this kind, if there is any. */
bool sim_kill_job(struct sim *s, unsigned node, enum job_kind kind);
/* A node's weightd forgets everything, and tells whoever watches. */
void sim_lose_data(struct sim *s, unsigned node);

/* It comes back with what it had, and tells whoever watches. */
void sim_find_data(struct sim *s, unsigned node);

/* A node's weightd has a version that nobody pushed, and lets go of the one before, with a word to whoever watches. */
void sim_replace(struct sim *s, unsigned node);

/* Makes a version at a node and pushes it. -errno of agent_push(). */
int sim_push(struct sim *s, unsigned node, char ret_sync[SYNC_ID_SIZE]);
/* The same for agent_plan(). */
int sim_plan(struct sim *s, unsigned node, char ret_sync[SYNC_ID_SIZE]);

/* For so long. */
void sim_run(struct sim *s, uint64_t ns);
/* Until it is true; false: it was not for so long. */
bool sim_run_until(struct sim *s, bool (*is_true)(struct sim *s), uint64_t ns);

/* What a node's weightd serves: its content. */
uint64_t sim_serves(const struct sim *s, unsigned node);
uint64_t sim_serves_of(const struct sim *s, unsigned node, const char *buffer);
/* Nothing runs: no jobs anywhere. */
bool sim_is_idle(struct sim *s);
/* A sync ended at node 0 since its `end` was forgotten. */
bool sim_ended(struct sim *s);
void sim_forget_end(struct sim *s, unsigned node);
/* All that live serve the same, and are idle. */
bool sim_is_converged(struct sim *s);

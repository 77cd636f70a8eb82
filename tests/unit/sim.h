/*
 * A simulated world for agents: any number of them in one process and in virtual time. Connections
 * delay, break and are restored; jobs model weightd's versions and the engines of a chain; records
 * survive a death. The same seed gives the same world.
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

/* A version of one node's weightd. Content 0: none. */
struct sim_version {
	char buffer[16];
	uint64_t number;
	uint64_t content;
	uint64_t n_bytes;
	bool has_companions;
};

#define SIM_COMPANIONS 5000 /* bytes of a header with files */

struct sim_node {
	struct sim *sim;
	unsigned index;
	char name[16];
	struct agent_config config;
	const char **peers;
	struct agent *agent; /* NULL: it is dead */
	json_t *commit_log; /* its saved pieces; NULL: none yet */
	uint64_t clock_skew_ns; /* its clock is ahead by this */
	uint64_t over_ns; /* end of its first certificate, by sim::now_ns; 0: never */
	bool is_renewed; /* it signs with its second certificate, which has the same key */
	char renewed[24]; /* the second certificate */
	uint64_t rate; /* incoming bytes/s */
	uint64_t room_ns; /* time that its sinks take to make room */

	struct sim_version versions[256]; /* the last versions of weightd */
	unsigned n_versions;
	uint64_t last_number;

	struct list jobs;
	struct job *watch; /* the watch of its weightd; not in `jobs`, as it has no end */
	uint64_t timer_ns;
	bool is_dying; /* it dies in the middle of a call into its agent */
	unsigned n_saves;
	unsigned die_at_save; /* number of the save; 0: none */
	bool die_before_it; /* it dies before that save is written */
	bool saves_fail;
	bool disk_is_full; /* saves fail likewise, and the space is checked before */
	bool jobs_hang; /* they ignore messages from now on */
	bool engines_hang; /* they open, but move nothing */
	unsigned n_corrupt; /* epochs that will corrupt bytes, from now on */
	bool lies; /* its sinks report another root than their own */
	bool sinks_fail; /* no memory */
	bool planners_fail; /* there is no such split */
	bool sources_fail; /* likewise, if they are to lend the version, not only look at it */
	bool copies_hang; /* copies from its GPU hang */
	bool compose_fails; /* no memory for a patch of several */
	bool compose_hangs;
	const char *local_why; /* sentence of failed jobs of its weightd; NULL: a short one */
	bool is_silent; /* its messages are lost, while its kernel answers */

	uint64_t others; /* content of its tensors without a mean */
	uint64_t layout; /* kind of tensors in its versions */
	uint64_t n_received; /* bytes, over all engines */
	uint64_t n_received_again; /* bytes received that it already had */
	unsigned n_read; /* versions that its sources read to lend them */
	unsigned n_patched; /* sinks that made their version with a patch */
	bool has_companions; /* versions that are published here have them */
	unsigned n_companions; /* sinks that got them */
	unsigned n_told_companions; /* sinks that know of any, or of none */
	char why[WHY_SIZE]; /* the last sync that ended here */
	char outcome[16];
	json_t *end; /* the event */
	json_t *left; /* the event that a push goes on for slow nodes; sent once */
	json_t *plan; /* the last plan, joined from its pages */
};

struct sim_options {
	unsigned n_nodes;
	unsigned n_publishers; /* the first ones; 0: one */
	unsigned n_addresses; /* addresses for bytes per node, at most 2; 0: one */
	enum policy policy;
	uint64_t n_bytes; /* size of a version; 0: 64 MiB */
	uint64_t n_changed; /* bytes of it that differ from the previous one; 0: all */
	uint64_t n_patch; /* bytes of a patch from one version to the next; 0: no patches */
	uint64_t seed;
	bool is_quiet; /* no random delays */
	bool as_frames; /* messages are encoded and decoded */
};

struct sim {
	struct sim_options options;
	uint64_t random;
	uint64_t now_ns;
	struct sim_node *nodes;
	struct group group;
	const char **names;
	struct sim_link *links; /* n * n, half of it used */
	uint64_t n_messages;
	uint64_t n_frame_bytes;
	uint64_t longest_ns; /* longest sync of those that ended at any node */
	uint64_t n_ids;
	uint64_t n_contents;
	uint64_t n_decided;
	uint64_t decided[4096]; /* contents in the commit log of a publisher */
	uint64_t pairs[4096][2]; /* pairs of contents */
	/* Called with each message before it arrives; false: it is lost. */
	bool (*on_message)(struct sim *s, unsigned from, unsigned to, const json_t *message);
	/* Called with each blob, which it may replace. */
	void (*on_blob)(struct sim *s, struct event *e);
	void *userdata;
	const char *untrusted; /* an address; NULL: none */
	struct sim_queue queue;
	struct memory **patches; /* all patches ever made, since any descriptor may refer to them */
	unsigned n_patches;
	struct sim_made *made; /* all contents ever made by several nodes */
	unsigned n_made;
	struct list engines;
	bool ticks;
};

#define FILES_MANY 4096 /* enough descriptors for the largest simulations */
/* Skips the test if the process cannot have as many descriptors. */
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
/* A node's weightd loses everything, and sends the watch an event. */
void sim_lose_data(struct sim *s, unsigned node);

/* A user removes the buffer from a node's weightd. The event comes with this version, 0: it had none. */
void sim_remove(struct sim *s, unsigned node, uint64_t version);

/* A node's weightd restores its versions, and sends the watch an event. */
void sim_find_data(struct sim *s, unsigned node);

/*
 * A node's weightd publishes a version outside of any push, drops the previous one, and sends the
 * watch an event.
 */
void sim_replace(struct sim *s, unsigned node);

/* Makes a version at a node and pushes it. Returns agent_push(). */
int sim_push(struct sim *s, unsigned node, char ret_sync[SYNC_ID_SIZE]);
/* The same with agent_plan(). */
int sim_plan(struct sim *s, unsigned node, char ret_sync[SYNC_ID_SIZE]);

/* Runs the world for `ns`. */
void sim_run(struct sim *s, uint64_t ns);
/* Runs until `is_true`; false: it did not happen within `ns`. */
bool sim_run_until(struct sim *s, bool (*is_true)(struct sim *s), uint64_t ns);

/* The content that a node's weightd serves. */
uint64_t sim_serves(const struct sim *s, unsigned node);
uint64_t sim_serves_of(const struct sim *s, unsigned node, const char *buffer);
/* No job runs on any node. */
bool sim_is_idle(struct sim *s);
/* A sync ended at node 0 since its `end` was forgotten. */
bool sim_ended(struct sim *s);
void sim_forget_end(struct sim *s, unsigned node);
/* All live nodes serve the same content, and are idle. */
bool sim_is_converged(struct sim *s);

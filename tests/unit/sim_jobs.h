/*
 * The jobs of a simulated world: weightds that lend and make versions, and engines in chains. Used
 * by sim.c.
 */
#pragma once

#include "server/sync/state/collective_op.h"
#include "sim.h"

#define MS ((uint64_t)1000000)
#define TICK (20 * MS)

struct sim_operation;

struct memory {
	uint64_t content;
	uint64_t n_bytes;
	struct ranges wrong;
	bool is_patch; /* from one content to a later one, or to any between */
	uint64_t from, to;
	unsigned n_refs;
};

struct job {
	struct list link; /* sim_node::jobs */
	struct sim_node *node;
	enum job_kind kind;
	void *owner;
	uint64_t id;
	char buffer[16]; /* a source's or sink's */
	bool hangs;
	uint64_t content; /* source: attached; sink: requested */
	uint64_t n_bytes;
	struct memory *memory;
	struct ranges missing; /* sink: not in its base */
	uint64_t base; /* the content of that base */
	bool makes; /* sink: a computed version */
	bool has_companions; /* sink: they came with it */
	bool is_publishing;

	struct list engine_link; /* sim::engines */
	char token[65];
	char from[NODE_MAX + 1];
	struct ranges ranges;
	uint64_t expected, done, stall_ns, moved_ns, turn_ns;
	bool is_source, is_started, has_next, is_over;
	char next_token[65], next_name[NODE_MAX + 1];
	uint64_t last_said;

	/* An engine in a mesh. */
	const struct sim_operation *operation;
	struct memory *term;
	char sync[SYNC_ID_SIZE];
	json_t *nodes;
	unsigned n_ranks, rank;
	struct moves plan; /* an exchange's */
	uint8_t plan_hash[32];

	/* A planner's: bytes of the sources, by rank. */
	uint64_t given[COLLECTIVE_OP_NODES_MAX];
	unsigned n_given;
};

/* Defined in sim.c. */
typedef int sim_ask_fn(struct agent *a, const json_t *request, char ret_sync[SYNC_ID_SIZE],
		       char why[WHY_SIZE]);
int sim_ask(struct sim *s, unsigned node, const json_t *request, sim_ask_fn *fn,
	    char ret_sync[SYNC_ID_SIZE]);
uint64_t sim_jitter(struct sim *s, uint64_t ns);
/* Called after a call into its agent, during which it may have died. */
void sim_settle_death(struct sim_node *n);

/* Fields that a message must have. */
const char *sim_text(const json_t *o, const char *key);
uint64_t sim_number(const json_t *o, const char *key);

/* Descriptors of files that contain a pointer. */
int sim_file_of(const void *pointer);
void *sim_pointer_of(int fd);
int sim_dup_fd(int fd);

uint64_t sim_content_of(const uint8_t root[32]);
bool sim_is_decided(const struct sim *s, uint64_t content);
struct sim_version *sim_newest(struct sim_node *n, const char *buffer);
void sim_add_version(struct sim_node *n, const char *buffer, uint64_t content, uint64_t n_bytes);

struct job *sim_job_find(struct sim_node *n, uint64_t id);
void sim_job_free(struct job *j);
/* Sends later; steals the message and the descriptors, each of which may be -1. */
void sim_job_say(struct job *j, uint64_t delay, json_t *message, int fd0, int fd1, int fd2);
/* Makes the memory of the sink a version of its node. */
void sim_publish(struct job *j);
void sim_source_told(struct job *j, const json_t *message, const int *fds, unsigned n_fds);
void sim_free_patches(struct sim *s);
void sim_sink_told(struct job *j, const json_t *message, const int *fds, unsigned n_fds);
void sim_engine_told(struct job *j, const json_t *message, const int *fds, unsigned n_fds);
/* The number in a node's name. */
unsigned sim_index_of(const char *name);
/* All engines move for a while; sim_tick_later() schedules the next time. */
void sim_tick(struct sim *s);
void sim_tick_later(struct sim *s);

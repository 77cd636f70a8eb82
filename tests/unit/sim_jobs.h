/*
 * The jobs of a simulated world: weightds that lend and make versions, and engines in chains. For sim.c.
 */
#pragma once

#include "sim.h"

#define MS ((uint64_t)1000000)

struct memory {
	uint64_t content;
	uint64_t n_bytes;
	struct ranges wrong;
	bool is_patch; /* from one content to another, the later one, or to any between */
	uint64_t from, to;
	unsigned n_refs;
};

struct job {
	struct list link; /* sim_node::jobs */
	struct sim_node *node;
	enum job_kind kind;
	void *owner;
	uint64_t id;
	bool hangs;
	uint64_t content; /* source: attached; sink: asked for */
	uint64_t n_bytes;
	struct memory *memory;
	struct ranges missing; /* sink: what it does not get from its base */
	uint64_t base; /* and the content that this has */
	bool is_publishing;

	struct list engine_link; /* sim::engines */
	char token[65];
	char from[NODE_MAX + 1];
	struct ranges ranges;
	uint64_t expected, done, stall_ns, moved_ns, turn_ns;
	bool is_source, is_started, has_next, is_over;
	char next_token[65], next_name[NODE_MAX + 1];
	uint64_t last_said;
};

enum event_kind {
	EVENT_MESSAGE,
	EVENT_BLOB,
	EVENT_JOB,
	EVENT_JOB_END,
	EVENT_TIMER,
	EVENT_DOWN,
	EVENT_DIAL,
	EVENT_TICK
};

struct event {
	uint64_t at_ns;
	enum event_kind kind;
	unsigned from, to;
	uint64_t id; /* of a job, or the generation of a link */
	json_t *json;
	int fds[2];
	unsigned n_fds;
	uint8_t hash[32];
	uint64_t size;
};

/* Of sim.c. Of an event, what it holds is given away. */
void sim_queue_push(struct sim *s, struct event e);
uint64_t sim_jitter(struct sim *s, uint64_t ns);
bool sim_is_cut(const struct sim *s, unsigned i, unsigned j);

/* What a message has to have. */
const char *sim_text(const json_t *o, const char *key);
uint64_t sim_number(const json_t *o, const char *key);

/* Descriptors of files that hold a pointer. */
int sim_file_of(const void *pointer);
int sim_dup_fd(int fd);

uint64_t sim_content_of(const uint8_t root[32]);
bool sim_is_decided(const struct sim *s, uint64_t content);
struct sim_version *sim_newest(struct sim_node *n);
void sim_add_version(struct sim_node *n, uint64_t content, uint64_t n_bytes);

struct job *sim_job_find(struct sim_node *n, uint64_t id);
void sim_job_free(struct job *j);
/* What the sink has is a version of its node from now on. */
void sim_publish(struct job *j);
void sim_source_told(struct job *j, const json_t *message, const int *fds, unsigned n_fds);
void sim_free_patches(struct sim *s);
void sim_sink_told(struct job *j, const json_t *message, const int *fds, unsigned n_fds);
void sim_engine_told(struct job *j, const json_t *message, const int *fds, unsigned n_fds);
/* All engines move for a while. */
void sim_tick(struct sim *s);

/*
 * weightd-train.h: train on one copy of the parameters per node
 *
 * The processes of a *job* (weightd.h) train one model together. A *plan* has the tensors, the mesh of ranks, the
 * placement of each kind of memory, and the operations of a step; all ranks make the same plan from the same options,
 * and the first difference ends the start. A *trainer* is one rank: it maps the parameters, which all ranks of a node
 * share, adds its gradients, and takes part in each step.
 *
 * A step happens exactly once. A rank that was killed, at any instruction, opens the job again and continues at the step
 * where it was, with the same bits: parameters, optimizer state, buffers, and the caller's own state. See weightd-train(7).
 *
 * Errors are those of weightd.h, with these meanings here:
 *	-EPROTOTYPE	the ranks of the job have different plans; the sentence has the first difference
 *	-EOWNERDEAD	a rank died, or the connection to its node was lost, and the options ask for an error
 *	-ETIMEDOUT	a rank did not arrive before the deadline
 *	-EINTR		a signal interrupted the wait, and the options ask for that
 *	-EBUSY		another process is this rank
 *	-ENOMEM		there is no room for the state; the sentence has the arithmetic
 *	-EDOM		the loss of a rank is not a number: the step changed nothing
 *	-EUCLEAN	the journal of the job was overwritten; the jobs of several nodes are at steps that do not fit together
 *	-ESTALE		the job was removed
 *	-ENOTRECOVERABLE "zero3": this rank has lost its place among the exchanges of the others, and must begin again
 * Every sentence about a rank names it, the operation and the step. weightd_train_error() returns the sentence of the
 * calling thread's last failure.
 *
 * Threads. One thread at a time may use a trainer or a window, except for weightd_train_ready(), which any thread may
 * call, one at a time. Processes. A forked child may read the parameters ("zero3" on several nodes: of units that were open);
 * gradients and windows are not mapped in it, so that it cannot write them. It must call nothing here (-ECHILD).
 * Structs begin with their size, by the rules of weightd.h: one of an older release is shorter, and what it lacks is zero.
 */
#ifndef WEIGHTD_TRAIN_H
#define WEIGHTD_TRAIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <weightd.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The sentence of the calling thread's last failure; "" if there was none. Valid until its next failure. */
const char *weightd_train_error(void);

/* The instruction set of the kernels in use: "x86-64-v2", "x86-64-v3" or "x86-64-v4". */
const char *weightd_train_isa(void);

/* --- Mesh --------------------------------------------------------------------------------------- */

/* Named dimensions of ranks, row-major: the last one varies fastest. Every group is a pure function of it. */
#define WEIGHTD_MESH_DIMS_MAX 4
#define WEIGHTD_MESH_NAME_MAX 15

struct weightd_mesh;

struct weightd_mesh_dim {
	const char *name; /* 1 to WEIGHTD_MESH_NAME_MAX of [a-z0-9_] */
	uint32_t size; /* ranks, not 0 */
};

/* Makes a mesh, which the caller frees. -EINVAL: no dimensions, too many, a bad or repeated name, or more than WEIGHTD_RANKS_MAX ranks. */
int weightd_mesh_new(const struct weightd_mesh_dim *dims, uint32_t n_dims,
		     struct weightd_mesh **ret);
void weightd_mesh_free(struct weightd_mesh *m);
uint32_t weightd_mesh_n_ranks(const struct weightd_mesh *m);
uint32_t weightd_mesh_n_dims(const struct weightd_mesh *m);
/* A dimension by its index, or its index by its name. -ENOENT. */
int weightd_mesh_dim(const struct weightd_mesh *m, uint32_t dim, struct weightd_mesh_dim *ret);
int weightd_mesh_find(const struct weightd_mesh *m, const char *name, uint32_t *ret_dim);
/* The coordinate of a rank in a dimension. -ENOENT. */
int weightd_mesh_coordinate(const struct weightd_mesh *m, uint32_t rank, uint32_t dim,
			    uint32_t *ret);
/* The ranks that differ from `rank` in that dimension only, in its order; as many as it has. -ENOENT. */
int weightd_mesh_group(const struct weightd_mesh *m, uint32_t rank, uint32_t dim,
		       uint32_t *ret_ranks);

/* --- Placement and redistribution ---------------------------------------------------------------- */

/* How the ranks of a mesh dimension hold a range, in DTensor's words. */
enum weightd_placement {
	WEIGHTD_REPLICATE = 1, /* each has all of it */
	WEIGHTD_SHARD, /* each has its part, by cuts */
	WEIGHTD_PARTIAL, /* each has a summand of it */
};

/* The name of a placement: "Replicate", "Shard", "Partial"; NULL for an unknown code. */
const char *weightd_placement_name(enum weightd_placement p);

/*
 * Cuts `n_elements` into `n` ragged parts at multiples of `block`, as even as possible: part i is [ret[i], ret[i + 1]).
 * No two parts differ by more than one block; the last one ends at n_elements. -EINVAL: n or block is 0.
 */
int weightd_cuts(uint64_t n_elements, uint64_t block, uint32_t n, uint64_t *ret);

/*
 * The change from one placement to another, and its backward: the transpose, with Replicate and Partial exchanged. A
 * gradient that would stay Partial is summed, and ends as Replicate.
 */
struct weightd_redistribution {
	size_t size; /* set by the caller */
	const char *name; /* "all-reduce", "reduce-scatter", "all-gather", "slice", "identity", "all-to-all" */
	enum weightd_placement backward_from, backward_to; /* placements of the gradient */
	const char *backward_name;
};

/*
 * Describes the change of a placement. `from` and `to` are placements of the value in the forward direction; `grad` is the placement in which the
 * gradient of the result arrives, 0 for the usual one (that of the result, Replicate for Partial and Partial for Replicate).
 * -EOPNOTSUPP: no such change.
 */
int weightd_redistribution(enum weightd_placement from, enum weightd_placement to,
			   enum weightd_placement grad, struct weightd_redistribution *ret);

/*
 * Bytes that a rank receives from others, by shared memory or a network, for `size` bytes among `n` ranks with these
 * cuts (in bytes; NULL: even, and then size must be a multiple of n): Partial to Shard, Shard to Replicate, and the sum
 * of both for Partial to Replicate. -EINVAL: bad cuts or rank; -EOPNOTSUPP: Shard to Shard, which has two sets of cuts.
 */
int weightd_redistribution_bytes(enum weightd_placement from, enum weightd_placement to,
				 uint64_t size, const uint64_t *cuts, uint32_t n, uint32_t rank,
				 uint64_t *ret);

/* --- Plan --------------------------------------------------------------------------------------- */

/* Kinds of memory. The name of a part of the job is that of its kind, without the prefix. */
enum weightd_kind {
	WEIGHTD_KIND_JOURNAL, /* words that order the steps, redo logs, states of the caller */
	WEIGHTD_KIND_PARAM,
	WEIGHTD_KIND_GRAD, /* of each rank */
	WEIGHTD_KIND_REDUCED, /* sums of gradients, fp32; two-phase steps only */
	WEIGHTD_KIND_RECEIVED, /* sums of other nodes, fp32; several nodes only */
	WEIGHTD_KIND_MASTER, /* fp32 originals of parameters in BF16 or F16 */
	WEIGHTD_KIND_MOMENTS, /* of the optimizer */
	WEIGHTD_KIND_BUFFER, /* running statistics, of each rank */
	WEIGHTD_KIND_FROZEN, /* parameters that are not trained: one copy for all ranks */
	WEIGHTD_KIND_STAGED, /* sums of a node on their way to others, fp32; "zero2" and "zero3" on several nodes */
	WEIGHTD_KIND_GATHERED, /* parameters of the units in use; "zero3" on several nodes */
	WEIGHTD_KINDS,
};

/* The name of a kind: "PARAM" for WEIGHTD_KIND_PARAM; NULL for an unknown code. */
const char *weightd_kind_name(enum weightd_kind kind);

enum weightd_optimizer {
	WEIGHTD_ADAMW = 1, /* decoupled weight decay */
	WEIGHTD_ADAM, /* weight decay added to the gradient */
	WEIGHTD_SGD, /* with momentum */
};

/* A parameter group. Learning rates come with each step; fields of other optimizers are ignored. */
struct weightd_group {
	size_t size; /* set by the caller */
	double weight_decay;
	double beta1, beta2, eps; /* Adam and AdamW */
	double momentum; /* SGD, without dampening */
	bool nesterov; /* SGD */
};

/*
 * A tensor of the model. Trained parameters (WEIGHTD_PARAM) are all WEIGHTD_F32, all WEIGHTD_BF16 or all WEIGHTD_F16; the
 * optimizer computes in fp32, and 16-bit parameters are the rounding (to nearest even) of fp32 originals in MASTER. Frozen
 * parameters and buffers (WEIGHTD_BUFFER) may have any element type of whole bytes. Tied names are one tensor.
 */
struct weightd_train_tensor {
	size_t size; /* set by the caller */
	const char *name;
	const uint64_t *shape; /* n_dims of them, outermost first */
	uint32_t n_dims;
	enum weightd_dtype dtype;
	enum weightd_role role;
	uint32_t group; /* trained parameters: index of the parameter group */
	/* Filled in by weightd_plan_tensor(): bytes from the start of PARAM, FROZEN, or a rank's BUFFER; a multiple of 64. */
	uint64_t offset;
	uint64_t n_bytes;
	bool frozen; /* a parameter that is not trained: it has no gradient and no group */
	/*
	 * Trained parameters with "zero3": the unit that they are gathered with, which is a bucket, too. Units count from 0 on,
	 * in the order in which forward begins with them, and the tensors of one follow each other. 16384 at most. Ignored with
	 * other strategies, and for a tensor without elements.
	 */
	uint32_t unit;
	/*
	 * Units around this one, such as 0 for the root's, 1 for a block and 2 for a linear layer of it that is a unit, too;
	 * WEIGHTD_LEVELS_MAX - 1 at most. Of each level one unit is open at a time, while the next one is fetched.
	 */
	uint32_t level;
};

#define WEIGHTD_LEVELS_MAX 8

enum weightd_step_form {
	WEIGHTD_STEP_AUTO, /* fused where strategy, overlap and scaling allow it */
	WEIGHTD_STEP_FUSED, /* the update reads the gradients of all ranks in place */
	/* Sums by bucket into REDUCED, then the update: for clipping, scaling, and overlap with backward */
	WEIGHTD_STEP_TWO_PHASE,
};

/*
 * Dynamic loss scaling, for gradients in F16, whose small values are zero: the caller multiplies its loss with
 * weightd_train_scale(), and the update divides the mean gradient by it. A step with a gradient that is not finite, on any
 * rank, changes nothing on all of them, and the scale is multiplied with `backoff`. After `interval` other steps in a row
 * it is multiplied with `growth`. The arithmetic is that of torch.amp.GradScaler, in fp32, but a scale that would not be a
 * normal number stays as it is.
 */
struct weightd_scaling {
	size_t size; /* set by the caller */
	double init; /* the first scale, > 0 */
	double growth; /* >= 1 */
	double backoff; /* > 0, <= 1 */
	uint32_t interval; /* steps, not 0 */
};

struct weightd_plan_options {
	size_t size; /* set by the caller */
	/*
	 * One dimension of data parallelism; or with "zero2" and "zero3" two, replicas and shards (HSDP). A replica is some
	 * nodes, one after the other; these share what else all nodes share, and replicas sum their gradients. A node is in one
	 * replica.
	 */
	const struct weightd_mesh *mesh;
	/*
	 * "shared": the ranks of a node have one PARAM; MOMENTS are sharded. "zero1": each rank has a PARAM of its own.
	 * "replicated": MOMENTS too, as torch's DDP.
	 * "zero2": as "shared", but GRAD of each rank is one bucket, which is summed during backward and used again.
	 * "zero3": as "zero2", and PARAM is sharded over the nodes; units are gathered for forward and backward (FSDP).
	 * Both imply overlap, and have neither staleness nor sync_every.
	 */
	const char *strategy;
	enum weightd_optimizer optimizer;
	const struct weightd_group *groups;
	uint32_t n_groups; /* 1 to 64 */
	enum weightd_step_form form;
	/*
	 * Two-phase: bytes of gradients in a bucket of several tensors; the first has 1 MiB at most. 0: 25 MiB. "zero3":
	 * ignored, as the units are the buckets
	 */
	uint64_t bucket_bytes;
	bool overlap; /* two-phase: a thread sums finished buckets during backward */
	/* Fused, "shared": a rank may be this many steps ahead of the slowest update, 63 at most. 0: synchronous */
	uint32_t staleness;
	/* "shared": copies of PARAM, each for ranks of one NUMA node. 0: as many as this machine has nodes */
	uint32_t n_copies;
	uint32_t state_size; /* bytes of the caller's state that a step commits, for each rank; 0: 4096; 1 MiB at most */
	bool without_journal; /* a killed rank leaves the step torn: for measurements only */
	/* Element type of GRAD: 0: that of the trained parameters; WEIGHTD_F32: sums of micro-batches are not rounded. */
	enum weightd_dtype grad_dtype;
	const struct weightd_scaling *scaling; /* two-phase: loss scaling. NULL: none */
	/*
	 * Machines, each with as many ranks of the mesh, one after the other, and a job of its own: rank r of the mesh is rank
	 * r % n of node r / n, where n is the number of ranks of a node. The form is two-phase, unless sync_every is set: ranks
	 * sum their shards inside a node, and between nodes rank i exchanges with the ranks i of the others. 0: 1;
	 * WEIGHTD_NODES_MAX at most
	 */
	uint32_t n_nodes;
	/*
	 * "shared", several nodes: local SGD. Each node takes its own steps, and after every so many of them the nodes average
	 * their parameters; their moments stay their own. 0: gradients are summed over the nodes in each step.
	 */
	uint32_t sync_every;
	/* "zero3": a gathered unit stays until the step ends, and backward does not gather it again (SHARD_GRAD_OP). */
	bool keeps_units;
	bool without_prefetch; /* "zero3": no unit is fetched before it is opened: half the memory of GATHERED */
};

struct weightd_plan;

/*
 * Makes the plan of a model. -EINVAL, with a sentence: no parameters, unknown strategy, bad group; a form that the strategy
 * or scaling cannot have. -EOPNOTSUPP: an element type that the optimizer does not have, or trained parameters of two types,
 * by the tensors' names.
 */
int weightd_plan_new(const struct weightd_train_tensor *tensors, uint32_t n_tensors,
		     const struct weightd_plan_options *options, struct weightd_plan **ret);
void weightd_plan_free(struct weightd_plan *p);

/* The plan as JSON, for people and tools; the caller frees it with free(). */
int weightd_plan_json(const struct weightd_plan *p, char **ret);
/* A plan from that JSON. -EBADMSG, with the path of the member. */
int weightd_plan_parse_json(const char *json, size_t size, struct weightd_plan **ret);
/* The plan in its binary form, which the ranks compare. Owned by the plan. */
const void *weightd_plan_image(const struct weightd_plan *p, uint64_t *ret_size);
int weightd_plan_parse(const void *image, uint64_t size, struct weightd_plan **ret);
/* XXH3-128 of the binary form. */
void weightd_plan_hash(const struct weightd_plan *p, uint8_t ret[16]);
/* Writes the first difference as a sentence. 0: they are equal; 1: they differ. */
int weightd_plan_compare(const struct weightd_plan *ours, const struct weightd_plan *theirs,
			 char *ret, size_t ret_size);

/* The mesh of the plan, owned by it. */
const struct weightd_mesh *weightd_plan_mesh(const struct weightd_plan *p);
uint32_t weightd_plan_n_tensors(const struct weightd_plan *p);
/* A tensor of the plan, and the index of one by its name. -ENOENT. The plan owns name and shape. */
int weightd_plan_tensor(const struct weightd_plan *p, uint32_t index,
			struct weightd_train_tensor *ret);
int weightd_plan_find(const struct weightd_plan *p, const char *name, uint32_t *ret_index);
/*
 * Bytes of memory of a kind on each node, all its ranks and padding included. With E elements in the flat range, n ranks of a
 * node, c copies of PARAM (1 for each NUMA node; n with "zero1" and "replicated"), and p and g bytes of an element of PARAM and
 * of GRAD (2 or 4), without padding:
 *	PARAM		p E c
 *	GRAD		g E n (staleness + 1)
 *	REDUCED		4 E; fused: 0
 *	RECEIVED	4 E; one node: 0
 *	MASTER		4 E u; p = 4: 0
 *	MOMENTS		8 E u; SGD: 4 E u, without momentum 0
 *	BUFFER		2 n of the buffers of a rank
 *	FROZEN		those of the frozen parameters, once
 * where u is 1 / nodes of a replica, 1 with sync_every, and n with "replicated". The pieces of several nodes are padded to the
 * longest one of each bucket: 32 elements at most.
 * With "zero2" and "zero3" and b elements of the largest bucket:
 *	PARAM		"zero3": p E u
 *	GRAD		g b n
 *	REDUCED		4 E u
 *	STAGED		8 b; one node: 0
 *	RECEIVED	4 b for each replica; one node: 0
 *	GATHERED	"zero3" on several nodes of a replica: rooms of whole pages, each for the largest unit that uses it, p bytes an
 *			element. A level has two rooms, which its units use in turn; one where it has one unit, or
 *			without_prefetch. So units of one size take twice that size. With keeps_units each has a room.
 */
uint64_t weightd_plan_bytes(const struct weightd_plan *p, enum weightd_kind kind);
/*
 * Bytes between tensors and at their ends, part of PARAM, and once more of each GRAD and moment. "zero3" on several nodes:
 * those of the PARAM of all nodes, and of the last page of one.
 */
uint64_t weightd_plan_padding(const struct weightd_plan *p);
uint32_t weightd_plan_n_nodes(const struct weightd_plan *p);
/*
 * Elements [ret_begin, ret_end) of the flat range of parameters that a rank of the mesh writes: those that it updates and,
 * with several nodes, those that ranks of other nodes update and send to it. -ENOENT: no such rank.
 */
int weightd_plan_shard(const struct weightd_plan *p, uint32_t rank, uint64_t *ret_begin,
		       uint64_t *ret_end);
/*
 * Elements that a rank of the mesh updates, and has the optimizer's state of: intervals of its shard by index, from 0 on; some
 * may be empty. With several nodes that sum gradients each bucket of a shard is cut into one for each node, or for each node of
 * a replica; else there is one interval. -ENOENT: no such rank, or no more intervals.
 */
int weightd_plan_piece(const struct weightd_plan *p, uint32_t rank, uint32_t index,
		       uint64_t *ret_begin, uint64_t *ret_end);

/*
 * Bytes that a rank reads from and writes to memory of other ranks of its node in a step, and those that it sends to other
 * nodes: payload on sockets, without the framing of the engine. See weightd-train(7), TRAFFIC.
 */
struct weightd_traffic {
	size_t size; /* set by the caller */
	uint64_t read; /* gradients and sums of other ranks */
	uint64_t written; /* parameters into copies of other ranks */
	uint64_t sent; /* 0: one node */
	uint64_t sent_replicas; /* part of `sent`: to other replicas, along the first of two dimensions of the mesh; all else is along the last */
};

/*
 * The bytes that a rank moves in a step in which all parameters have gradients and, with overlap, all weights are equal; with sync_every: in a step that
 * averages. -ENOENT: the mesh has no such rank.
 */
int weightd_plan_traffic(const struct weightd_plan *p, uint32_t rank, struct weightd_traffic *ret);

/*
 * The bucket whose gradients are summed with those of a tensor, from 0 on in the order in which backward completes them.
 * -ENOENT: no such tensor, or none in a bucket: a buffer, a frozen or empty parameter, a fused plan.
 */
int weightd_plan_bucket(const struct weightd_plan *p, uint32_t tensor, uint32_t *ret);
/* The number of units of a plan of "zero3"; 0 with other strategies. */
uint32_t weightd_plan_n_units(const struct weightd_plan *p);

/* --- Nodes --------------------------------------------------------------------------------------- */

#define WEIGHTD_NODES_MAX 64

/* Bytes of this process. */
struct weightd_segment {
	void *data;
	uint64_t size;
};

/* Bytes to, and from, rank i of another node, in an exchange of the ranks i of all nodes. */
struct weightd_transfer {
	uint32_t node; /* the other one */
	const struct weightd_segment *send; /* only read */
	uint32_t n_send;
	const struct weightd_segment
		*receive; /* as large together as what the other one sends, cut in any way */
	uint32_t n_receive;
};

/*
 * A connection of the caller to the ranks i of all nodes, such as a process group of torch.distributed. exchange() returns once
 * all bytes were sent, or are in buffers of its own, and all were received; a negative errno with a sentence in `ret_why`: it
 * failed, and the trainer must be freed. It is called inside calls of the trainer, on their thread, and by all ranks i in the
 * same order; so buckets are not exchanged during backward, but in the update.
 */
struct weightd_engine {
	size_t size; /* set by the caller */
	const char *name; /* for sentences */
	int (*exchange)(void *data, const struct weightd_transfer *transfers, uint32_t n,
			int deadline_ms, char *ret_why, size_t why_size);
	void *data;
};

/*
 * The place of this process among several nodes. The ranks i of all nodes meet at the address of node 0, at port + i, when they
 * first exchange, and again after one of them was lost. Nothing is encrypted, and who connects there is trusted.
 */
struct weightd_nodes {
	size_t size; /* set by the caller */
	uint32_t node; /* this one, from 0 on */
	/* node is $GROUP_RANK (torchrun, weightctl train run), else that of Open MPI or SLURM */
	bool node_from_env;
	const char *address; /* name or address of node 0; NULL: $MASTER_ADDR */
	uint16_t port; /* 0: $MASTER_PORT + 1, as torchrun listens at $MASTER_PORT itself */
	const struct weightd_engine *engine; /* NULL: Gloo, of the object libweightd-train-gloo.so */
};

/* --- Trainer ------------------------------------------------------------------------------------- */

/* Reaction of the others to the death of a rank. */
enum weightd_on_death {
	WEIGHTD_DEATH_WAIT, /* wait for its successor, until the deadline */
	WEIGHTD_DEATH_FAIL, /* -EOWNERDEAD */
	WEIGHTD_DEATH_FINISH, /* finish its part of the update, if it had handed over its gradients; else wait */
};

struct weightd_train_options {
	size_t size; /* set by the caller */
	const char *token; /* NULL: $WEIGHTD_JOB, else the content of the file $WEIGHTD_JOB_FILE */
	uint32_t rank;
	/* rank is that of the launcher: the first of $LOCAL_RANK, $OMPI_COMM_WORLD_LOCAL_RANK, $RANK, $SLURM_LOCALID */
	bool rank_from_env;
	/*
	 * A signal with a handler ends a wait of the calling thread with -EINTR, and the call can be repeated. A signal that
	 * arrives between two sleeps does not: the wait continues. Windows ignore this option: a collective cannot be repeated.
	 */
	bool interruptible;
	/*
	 * Deadline of a rank's arrival; < 0: none. 0: 30 s, and 10 minutes in open and begin, as the others are starting, too
	 */
	int deadline_ms;
	enum weightd_on_death on_death; /* several nodes: not WEIGHTD_DEATH_FINISH */
	/* Several nodes: the place of this one. NULL: node, address and port are those of the environment. */
	const struct weightd_nodes *nodes;
};

struct weightd_train;

/*
 * Opens the job as one rank; the first rank makes its memory. Finishes the step in which this rank, or all, died: where its
 * gradients were handed over, it waits here for ranks that must compute theirs again. Between this call and the first
 * weightd_train_update() there must be no collective of the caller's own (such as a barrier of torch.distributed): the
 * others would wait there for a rank that waits here for them. Keeps a reference to the connection, which the trainer
 * uses alone afterwards.
 */
int weightd_train_open(struct weightd *w, const struct weightd_plan *plan,
		       const struct weightd_train_options *options, struct weightd_train **ret);
/*
 * This rank is done: once all are, the job ends. The trainer, and PARAM, remain until it is freed. With staleness it makes the
 * last updates, as all ranks must then do after the same step. Several nodes: it waits until the same rank of the other ones
 * has called it, too, as that one may need what this rank has sent last. Errors as of weightd_train_update().
 */
int weightd_train_close(struct weightd_train *t);
/* Frees a trainer; NULL is fine. Without weightd_train_close() the job remains and can be resumed. */
void weightd_train_free(struct weightd_train *t);

/* The plan, owned by the trainer. */
const struct weightd_plan *weightd_train_plan(const struct weightd_train *t);
uint32_t weightd_train_rank(const struct weightd_train *t);
/* Steps that are committed; the next one is this number + 1. */
uint64_t weightd_train_step(const struct weightd_train *t);

/* True until weightd_train_begin() of rank 0: PARAM has no values yet. Rank 0 asks, before it fills. */
bool weightd_train_is_empty(const struct weightd_train *t);
/*
 * Gives a tensor its first value, n_bytes; a trained parameter of a 16-bit type: its fp32 original, 4 bytes an element. A
 * parameter: rank 0, while weightd_train_is_empty(); -EINVAL: another rank. With several nodes, the values of node 0 are
 * those of all, and the call of rank 0 of another node has no effect. A
 * buffer: each rank its own, while weightd_train_step() is 0, whether the job is empty or not; a rank that was started anew
 * before its first update finds zeros again. -EALREADY: it is too late.
 */
int weightd_train_fill(struct weightd_train *t, uint32_t tensor, const void *data);
/*
 * Waits until rank 0 has filled the job and called this. Returns at once for a job that is not empty. Each rank calls it
 * before its first step.
 */
int weightd_train_begin(struct weightd_train *t);

/*
 * Addresses of a tensor. Parameters are read-only: a stray write faults. Gradients are this rank's, of the step that comes
 * next: their address changes from step to step with staleness. They contain what an earlier step left: the caller
 * overwrites all of them, those of unused parameters with zeros, and never the padding between them. Buffers are private to
 * this process; a step saves them. NULL: no such tensor, or none of that kind.
 */
const void *weightd_train_param(const struct weightd_train *t, uint32_t tensor);
void *weightd_train_grad(const struct weightd_train *t, uint32_t tensor);
void *weightd_train_buffer(const struct weightd_train *t, uint32_t tensor);
/*
 * Values are written between steps, and not by the update: for initialisation, or a state_dict that is loaded. All ranks call
 * both; begin waits until all ranks have called it, and end until rank 0 has. Between them rank 0 writes parameters through
 * weightd_train_write(), as weightd_train_fill() does; the optimizer's state stays as it is. A buffer is the calling rank's.
 * The buffers that a rank has in the end are those that a restart, and a save, find for this step. With several nodes, all
 * ranks of all nodes call both; node 0's parameters are those of all, and on other nodes a written parameter has no effect.
 *
 * A rank that was killed between them leaves the values that were written so far: call both again, after the same step. A
 * rank that is started anew after they were complete may call them again after the same step, too: parameters that it writes
 * then are ignored. Errors of waits as of weightd_train_update(), after which the call can be repeated; -EINVAL: with
 * staleness, during a step that was not completed, once units were gathered after the last one ("zero3" on several nodes), or
 * out of this order; -EBUSY: a frozen parameter that a save writes now; -ENOMEM: with "zero2" and "zero3" on several nodes rank
 * 0 of node 0 has fp32 originals of all parameters from the first call to the last, as from weightd_train_fill() on.
 */
int weightd_train_write_begin(struct weightd_train *t);
int weightd_train_write(struct weightd_train *t, uint32_t tensor, const void *data);
int weightd_train_write_end(struct weightd_train *t);
/*
 * The fp32 original of a trained parameter of "zero2" or "zero3" on several nodes, with what was written so far, on rank 0 of
 * node 0, between the calls above; no node has all of them at another time. NULL elsewhere, and once all nodes have the values.
 */
const float *weightd_train_written(const struct weightd_train *t, uint32_t tensor);

enum weightd_pass {
	WEIGHTD_PASS_FORWARD,
	WEIGHTD_PASS_BACKWARD,
	/* Before those of the step: a rank that is started again may leave it out, and ends others that need it there. */
	WEIGHTD_PASS_EVALUATION,
};

/*
 * Opens and closes a unit of "zero3", whose parameters can be read between open and close alone, at addresses that stay the same. Open waits until
 * they are gathered, and has the next unit fetched: behind it, or in backward before it. All ranks of all nodes open and close
 * the same units in the same order, whatever they read them for; with one node, or another strategy, neither does anything.
 * What reads a parameter at another time faults.
 *
 * -EINVAL: no such unit; it is open, or is not; another unit of its level is, or one of an evaluation where passes begin. Errors
 * of waits as of weightd_train_update(): open can be called again. -EUCLEAN, -ENOTRECOVERABLE: this rank repeats the passes of a
 * step that it was killed in, and not as they were, or another one does: free the trainer, and start the program again.
 */
int weightd_train_unit_open(struct weightd_train *t, uint32_t unit, enum weightd_pass pass);
int weightd_train_unit_close(struct weightd_train *t, uint32_t unit);

/* The start of this rank's PARAM or GRAD, and its bytes. NULL for other kinds, and with "zero2" and "zero3". */
const void *weightd_train_range(const struct weightd_train *t, enum weightd_kind kind,
				uint64_t *ret_size);
/* The state that the last committed step saved; 0 bytes before the first. Valid until the next step. */
const void *weightd_train_state(const struct weightd_train *t, uint64_t *ret_size);

/*
 * Waits, with "zero2" and "zero3", until the gradients of a bucket can be written: those of all buckets before it were handed over
 * (weightd_train_ready()), and all ranks of the node have summed them. weightd_train_grad() is NULL until then, and after
 * they were handed over. Other strategies: returns at once. weightd_train_update() hands over no gradients here: each tensor
 * needs weightd_train_ready() before. -EINVAL: no such bucket, or one before it was not handed over. Errors of waits as of
 * weightd_train_update(); the call can be repeated.
 */
int weightd_train_bucket_open(struct weightd_train *t, uint32_t bucket);

/*
 * The gradient of a tensor is complete for this step. Optional: weightd_train_update() completes the rest. A two-phase
 * plan sums a bucket once all ranks completed it. False from weightd_train_wants(): a rank that died had handed over the
 * bucket, and the caller must not write this gradient again.
 */
int weightd_train_ready(struct weightd_train *t, uint32_t tensor);
bool weightd_train_wants(const struct weightd_train *t, uint32_t tensor);

#define WEIGHTD_WEIGHT_MAX 1e30

struct weightd_update {
	size_t size; /* set by the caller */
	const double *lr; /* learning rate of each parameter group; those of rank 0 count, as its max_norm does */
	/*
	 * This rank's part of the mean gradient, e.g. its samples: sum(weight * grad) / sum(weight). 0 of all ranks: equal.
	 * From 0 to WEIGHTD_WEIGHT_MAX. A plan with overlap sums with equal weights during backward; unequal weights sum all
	 * buckets again. "zero2" and "zero3" have nothing left to sum again: 0, or -EINVAL; multiply the loss instead.
	 */
	double weight;
	bool has_loss;
	double loss; /* checked: a NaN of one rank ends the step on all with -EDOM, and nothing changed but its number */
	double max_norm; /* two-phase: clips the global norm as torch's clip_grad_norm_; 0: not */
	const void *state; /* saved with the step */
	uint64_t state_size;
	/*
	 * By tensor of the plan: true for a parameter that this rank has no gradient of in this step. NULL: it has all. A
	 * parameter that no rank has a gradient of stays as it is, with its moments, and none of its bytes moves. Where another
	 * rank has one, this rank's gradient must be zeros. Adam's bias correction counts steps for all parameters alike.
	 */
	const bool *unused;
};

/*
 * Takes the step: waits for the gradients of all ranks, sums them in the order of ranks, updates this rank's part of PARAM, and
 * waits for the others' (with staleness k, for the step k before). On success, and with -EDOM, the step is committed.
 * With -EOWNERDEAD, -ETIMEDOUT and -EINTR it is not, and may be called again: it continues with the arguments of the first
 * call. With -ESTALE it never will be.
 * Bias corrections of Adam do not count steps that ended with -EDOM, nor those that overflowed (scaling).
 *
 * With staleness, backward may see parts of PARAM that are up to k steps newer than others, and -EDOM is about the step that
 * the sentence names. weightd_train_close() makes the updates that are left, and waits for those of all ranks: the
 * result of a run has the gradients of every step, once, in the order of steps.
 */
int weightd_train_update(struct weightd_train *t, const struct weightd_update *u);
/*
 * The global norm of the last two-phase step's mean gradient, before clipping. NaN: there is none, after a step that ended with
 * -EDOM, before the first one, and in a fused plan. After a step that overflowed it is not finite.
 */
double weightd_train_norm(const struct weightd_train *t);

/* The factor for the loss of the step that comes next; 1 in a plan without scaling; NaN in a forked child. */
double weightd_train_scale(const struct weightd_train *t);
/*
 * True if the last step changed nothing, as a gradient was not finite; a plan with scaling. All ranks have the same answer, and
 * a rank that was started anew as well. weightd_train_update() returned 0.
 */
bool weightd_train_overflowed(const struct weightd_train *t);

/*
 * Bytes that this rank moved since it was opened: in its steps, and the values that rank 0 gives to copies of other ranks
 * (weightd_train_fill(), weightd_train_write()), as written.
 */
int weightd_train_traffic(const struct weightd_train *t, struct weightd_traffic *ret);

/*
 * Publishes PARAM and this rank's buffers as a version of buffer `name` on the host. One rank calls it between steps: no rank
 * can update before it goes on. With staleness others can: parts of the version may be up to k steps newer than the rest, until
 * all ranks called weightd_train_close(). With several nodes each may publish: a version is of its own host. "zero3" on several
 * nodes: all ranks of all nodes call it, and gather one unit after the other, which those with a name copy; NULL: the rank
 * takes part alone, and with one node does nothing. A failure of the version is that of its rank, and leaves the order of the
 * ranks as it is; errors of waits as of weightd_train_unit_open(), but no -EINTR. -EINVAL: a unit is open; NULL with another
 * strategy. -EALREADY: the process before this one was in weightd_train_close(), and the other nodes may have ended.
 */
int weightd_train_publish(struct weightd_train *t, const char *name, uint64_t *ret_version);
/*
 * The same in the buffer of another user, as `owner` of struct weightd_create_options has it; weightd_train_publish() fails
 * there with -EPERM. NULL: the caller's own.
 */
int weightd_train_publish_owned(struct weightd_train *t, const char *name, const uint32_t *owner,
				uint64_t *ret_version);

/* --- Checkpoints --------------------------------------------------------------------------------- */

/*
 * A checkpoint is a folder step-NNNNNNNNNNNN with the parameters, as safetensors files and their index, which other programs
 * open; the optimizer's state, likewise; a file for each rank of the mesh with its state and buffers; and trainer.json. Each
 * tensor is whole in one file: that of the rank which updates its first element. See weightd-train(7).
 *
 * With several nodes, the ranks of node 0 write and read all files, and those of other nodes exchange with them what they lack:
 * rank i with rank i of node 0, at the port of weightd_nodes + ranks of a node + i, beside the steps. An engine of the caller
 * moves none of it: the address is needed all the same. The files do not depend on the number of nodes.
 */
struct weightd_checkpoint_options {
	size_t size; /* set by the caller */
	uint32_t keep; /* newest checkpoints that remain in the folder; 0: all */
};

/*
 * Begins to save the last step into a folder `path`, which may exist. All ranks call it after the same step. Copies this
 * rank's part of PARAM, MASTER and MOMENTS, which is 1 / ranks of one copy of each and one tensor at most, its buffers and its
 * state, and returns; a thread writes the copy while training goes on. The checkpoint appears under its name, in the place of
 * one of the same step, once all ranks have written theirs. Frozen parameters are not copied: end the save before
 * weightd_train_write_begin() where they are written. With several nodes, all ranks of all nodes call it, and `path` and
 * `options` are those of node 0; with sync_every, after a step that averages, and the moments are node 0's. -EBUSY: the save
 * before has not ended; -EINVAL: with staleness, with sync_every after another step, or during a step that was not completed;
 * -ENOMEM: no room for the copy.
 */
int weightd_train_save(struct weightd_train *t, const char *path,
		       const struct weightd_checkpoint_options *options);
/*
 * Waits for the save that this rank has begun, on all ranks; 0: none has begun since, or it is complete. The errors of writing,
 * with the file's name, e.g. -ENOSPC: the checkpoint does not appear, and older ones are as they were. -EOWNERDEAD: a rank died
 * before it had written its part; -EINVAL: a rank took the next step, or began a later save on another node, without the save;
 * -ETIMEDOUT: a rank of another node did not take part before the deadline. Errors of any rank are returned on all, once.
 * -EAGAIN: the save has ended, and a rank that was killed and resumed ended a later one since, whose result is in its place.
 * Another weightd_train_save() without this call loses the error of the save before. weightd_train_close() waits, too, and
 * returns the error: call it again to leave.
 */
int weightd_train_save_wait(struct weightd_train *t);
/*
 * Gives a job that took no step the values of a checkpoint, or of the newest one in the folder `path`, instead of
 * weightd_train_fill(): parameters, optimizer's state, scale, step, and states and buffers of the ranks; if the checkpoint has
 * another number of ranks, each rank gets those of its rank 0. All ranks call it, and each reads the bytes of its own part
 * alone, and headers. Before weightd_train_begin(), which then waits for all; or after it, and then it waits itself. With
 * several nodes, those of node 0 read for the others, which wait for them and ignore `path`; errors of reading are those of
 * all. Tensors must be the same by name, type and shape, in any order; strategy, form, groups and mesh may be others.
 * -EPROTOTYPE: the first difference to the plan, or ranks that loaded different steps; -EBADMSG: a file is damaged, by its
 * name; -ENOENT: there is no checkpoint; -EALREADY: a step has begun; -EINVAL: a unit was opened. After a failure the values
 * are undefined until a load succeeds.
 */
int weightd_train_load(struct weightd_train *t, const char *path);

/* --- Status -------------------------------------------------------------------------------------- */

enum weightd_rank_phase {
	WEIGHTD_RANK_GONE = 1, /* no process is this rank */
	WEIGHTD_RANK_COMPUTING, /* forward and backward, or whatever the caller does between updates */
	WEIGHTD_RANK_WAITING, /* for another rank */
	WEIGHTD_RANK_UPDATING, /* sums and updates its part */
	WEIGHTD_RANK_DONE, /* it has closed the job */
};

/* The name of a phase, such as "computing"; NULL for an unknown code. */
const char *weightd_rank_phase_name(enum weightd_rank_phase phase);

/* One rank, as it was when the status was read. */
struct weightd_rank_status {
	size_t size; /* set by the caller */
	uint32_t rank; /* of the job */
	int32_t pid; /* as weightd_job_holder() has it: 0: none, -1: of another pid namespace */
	enum weightd_rank_phase phase;
	uint64_t step; /* committed steps */
	double loss; /* of the last step that had one; NaN: none */
	double computing_s, waiting_s, updating_s; /* of the last complete step */
	double since_s; /* in this phase, before the status was read; GONE: NaN */
	uint32_t waits_for; /* WAITING: a rank of the job, with `what` "nodes" a node; UINT32_MAX: unknown */
	char what[32]; /* WAITING: "gradients", "sums", "parameters", "units", "first values", "written values", "nodes"; "": no name for it */
	uint64_t read,
		written; /* bytes of memory of other ranks along the last dimension of the mesh, since the job began */
	uint64_t sent; /* likewise: payload bytes to other nodes */
	uint32_t mesh_rank; /* rank of the mesh: where there is one node, `rank` */
	uint64_t sent_replicas; /* part of `sent`: as of struct weightd_traffic */
};

struct weightd_train_status;

/*
 * Reads the status of a job by its name, without being a rank: the job's user, or an administrator. The ranks do not notice.
 * The caller owns the result. -ENOENT, -EACCES; -ENODATA: no rank has joined yet; -EPROTOTYPE: it is no training job, or one
 * of another release; -EOPNOTSUPP: the server is too old. A rank may have written any values: they are to be shown, and not
 * to be trusted. In a process that is a rank of this job each call keeps a descriptor (weightd_job_view()).
 */
int weightd_train_status_read(struct weightd *w, const char *job, struct weightd_train_status **ret);
void weightd_train_status_free(struct weightd_train_status *s);
/* The plan of the job, owned by the status. */
const struct weightd_plan *weightd_train_status_plan(const struct weightd_train_status *s);
/* Ranks of the job: where there are several nodes, those of one node. */
uint32_t weightd_train_status_n_ranks(const struct weightd_train_status *s);
/* The status of a rank. -ENOENT: no such rank. */
int weightd_train_status_rank(const struct weightd_train_status *s, uint32_t rank,
			      struct weightd_rank_status *ret);

/* --- Windows ------------------------------------------------------------------------------------- */

/*
 * A window is memory of a job for collectives: one range of each rank, all mapped by all. Collectives work in place on
 * offset + n elements of each range, in fp32 sums in the order of ranks, with the same bits on all. A rank that dies in one
 * leaves the ranges undefined: the others fail with -EOWNERDEAD, whatever options->on_death is, and the window is broken. It
 * cannot be resumed; create another job.
 *
 * When a collective returns, the caller may read and write its own range; those of others only after a barrier.
 */
struct weightd_window;

/*
 * Opens a window of `size` bytes for each rank, a multiple of 64. The token must be of a job without a plan. Options as of a trainer. Waits for
 * all ranks to open it, until the deadline.
 */
int weightd_window_open(struct weightd *w, const struct weightd_train_options *options,
			uint64_t size, struct weightd_window **ret);
/* Leaves the job. NULL is fine. */
void weightd_window_free(struct weightd_window *win);
/* The range of a rank, and of this one. NULL: no such rank. */
void *weightd_window_data(const struct weightd_window *win, uint32_t rank);
uint32_t weightd_window_rank(const struct weightd_window *win);
uint32_t weightd_window_n_ranks(const struct weightd_window *win);

/* Waits until all ranks have called it. */
int weightd_window_barrier(struct weightd_window *win);
/* Sums a range over all ranks, each of which has the result: WEIGHTD_F32 and WEIGHTD_BF16. `offset` in bytes, a multiple of 64. */
int weightd_window_all_reduce(struct weightd_window *win, uint64_t offset, uint64_t n,
			      enum weightd_dtype dtype);
/* Part `rank` of weightd_cuts(n, 32) is summed in this rank's range, the rest undefined. */
int weightd_window_reduce_scatter(struct weightd_window *win, uint64_t offset, uint64_t n,
				  enum weightd_dtype dtype);
/* Part `rank` of each rank goes to `to`, `n` elements outside the window; NULL: into the own range of each. */
int weightd_window_all_gather(struct weightd_window *win, uint64_t offset, uint64_t n,
			      enum weightd_dtype dtype, void *to);
/* The bytes of rank `root` go to all. */
int weightd_window_broadcast(struct weightd_window *win, uint64_t offset, uint64_t n_bytes,
			     uint32_t root);

/* --- Profile ------------------------------------------------------------------------------------- */

enum weightd_collective {
	WEIGHTD_ALL_REDUCE = 1,
	WEIGHTD_REDUCE_SCATTER,
	WEIGHTD_ALL_GATHER,
	WEIGHTD_BROADCAST,
	WEIGHTD_BARRIER,
};

/* One line of a profile. Bandwidths are those of nccl-tests: algbw = size / time, busbw = algbw * factor. */
struct weightd_profile {
	size_t size; /* set by the caller */
	enum weightd_collective collective;
	uint64_t n_bytes;
	uint32_t n_ranks;
	uint32_t n_rounds; /* after the warm-up */
	double median_us, min_us;
	double algbw, busbw; /* bytes a second, by the median; 0 for a barrier */
};

/* Measures one collective with one size; all ranks call it alike. n_rounds 0: enough for about 0.2 s. */
int weightd_window_profile(struct weightd_window *win, enum weightd_collective collective,
			   uint64_t n_bytes, enum weightd_dtype dtype, uint32_t n_rounds,
			   struct weightd_profile *ret);
const char *weightd_collective_name(enum weightd_collective c);

#ifdef __cplusplus
}
#endif

#endif

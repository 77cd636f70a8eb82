/*
 * A fixed table: a communicator beyond it is not recorded.
 */
#include "bpf/nccl/comm.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "bpf/nccl/handle.h"
#include "bpf/nccl/text.h"

#define STATE(word) ((enum comm_state)((word)&3))
#define TURN(word) ((uint32_t)((word) >> 8) & HANDLE_TURNS)
#define WORD(turn, state) ((uint64_t)((turn)&HANDLE_TURNS) << 8 | (state))

struct comm comms[N_COMMS];
static unsigned n_open;
static _Atomic unsigned limit;
static _Atomic uint32_t number;

enum comm_state comm_state(const struct comm *c)
{
	return STATE(atomic_load_explicit(&c->word, memory_order_acquire));
}

static void set_state(struct comm *c, uint32_t turn, enum comm_state state)
{
	atomic_store_explicit(&c->word, WORD(turn, state), memory_order_release);
}

void comm_free(struct comm *c)
{
	set_state(c, TURN(atomic_load(&c->word)), COMM_FREE);
}

static bool is_label_taken(const struct comm *but, const char *label)
{
	for (const struct comm *c = comms; c < comms + comm_limit(); c++)
		if (c != but && comm_state(c) != COMM_FREE && !strcmp(c->label, label))
			return true;
	return false;
}

/*
 * Its name, or its number; two ranks of this process in one communicator, or two communicators of one name, get a
 * suffix.
 */
static void set_label(struct comm *c)
{
	char who[COMM_NAME_SIZE];

	if (*c->name)
		(void)strcpy(who, c->name);
	else
		(void)snprintf(who, sizeof(who), "%016" PRIx64, c->hash);
	(void)snprintf(c->label, sizeof(c->label), "nccl:%s", who);
	if (is_label_taken(c, c->label))
		(void)snprintf(c->label, sizeof(c->label), "nccl:%s#%d", who, c->rank);
	if (is_label_taken(c, c->label))
		(void)snprintf(c->label, sizeof(c->label), "nccl:%s#%d#%016" PRIx64 "#%u", who,
			       c->rank, c->hash, (unsigned)(c - comms));
}

struct comm *comm_open(const struct comm_facts *f, void **ret_context)
{
	for (struct comm *c = comms; c < comms + N_COMMS; c++) {
		uint32_t turn = TURN(atomic_load(&c->word)) + 1;

		if (comm_state(c) != COMM_FREE)
			continue;
		if (atomic_load(&number) == 0)
			atomic_store(&number, handle_draw());
		text_copy(c->name, sizeof(c->name), f->name);
		c->hash = f->hash;
		c->rank = f->rank;
		c->n_ranks = f->n_ranks;
		c->n_nodes = f->n_nodes;
		c->api = f->api;
		set_label(c);
		atomic_store(&c->chained, NULL);
		atomic_store(&c->has_next, false);
		set_state(c, turn, COMM_OPEN);
		if ((unsigned)(c - comms) >= comm_limit())
			atomic_store(&limit, (unsigned)(c - comms) + 1);
		*ret_context = handle_of(atomic_load(&number), turn, (uint32_t)(c - comms));
		n_open++;
		return c;
	}
	return NULL;
}

uint32_t comm_find(const void *context)
{
	uint32_t turn, place;
	uint64_t word;

	if (!context ||
	    !handle_read(context, atomic_load_explicit(&number, memory_order_relaxed), &turn,
			 &place) ||
	    place >= N_COMMS)
		return COMM_NONE;
	word = atomic_load_explicit(&comms[place].word, memory_order_acquire);
	return TURN(word) == turn && STATE(word) == COMM_OPEN ? place : COMM_NONE;
}

struct comm *comm_close(const void *context)
{
	uint32_t place = comm_find(context);

	if (place == COMM_NONE)
		return NULL;
	set_state(&comms[place], TURN(atomic_load(&comms[place].word)), COMM_CLOSED);
	n_open--;
	return &comms[place];
}

unsigned comm_limit(void)
{
	return atomic_load(&limit);
}

unsigned comm_n_open(void)
{
	return n_open;
}

void comm_forget_all(void)
{
	atomic_store(&number, handle_draw());
	for (struct comm *c = comms; c < comms + comm_limit(); c++)
		comm_free(c);
	n_open = 0;
}

#include "libclient/train/engine/status.h"

#include <string.h>

#include "ipc/base/num.h"

static uint64_t load(const _Atomic uint64_t *word)
{
	return atomic_load_explicit(word, memory_order_relaxed);
}

static void store(_Atomic uint64_t *word, uint64_t value)
{
	atomic_store_explicit(word, value, memory_order_relaxed);
}

static uint64_t since(uint64_t word, uint64_t now_ns)
{
	uint64_t began_ns = control_activity_ns(word);

	return now_ns > began_ns ? now_ns - began_ns : 0;
}

/* The time as words have it: differences add up to the whole. */
static uint64_t now(void)
{
	return control_activity_ns(control_activity(CONTROL_NEVER, CONTROL_UNNAMED, 0, num_now_ns()));
}

/* Two threads may enter for one lane, where a signal interrupted a wait: no time is counted twice. */
static enum control_phase lane_enter(struct status_lane *lane, enum control_phase phase,
				     enum control_topic topic, uint32_t rank)
{
	uint64_t now_ns, before;

	if (!lane || !lane->word)
		return CONTROL_NEVER;
	now_ns = now();
	before = atomic_exchange_explicit(lane->word, control_activity(phase, topic, rank, now_ns),
					  memory_order_relaxed);
	phase = control_activity_phase(before);
	if (phase > CONTROL_DONE) /* another process wrote the word */
		return CONTROL_NEVER;
	atomic_fetch_add_explicit(&lane->spent_ns[phase], since(before, now_ns),
				  memory_order_relaxed);
	return phase;
}

void status_enter(struct status_lane *lane, enum control_phase phase)
{
	(void)lane_enter(lane, phase, CONTROL_UNNAMED, 0);
}

enum control_phase status_wait(struct status_lane *lane, enum control_topic topic, uint32_t rank)
{
	return lane_enter(lane, CONTROL_WAITING, topic, rank);
}

static void lane_init(struct status_lane *lane, _Atomic uint64_t *word)
{
	memset(lane, 0, sizeof(*lane));
	lane->word = word;
	/* The time since the predecessor's last phase is no rank's. */
	store(word, control_activity(CONTROL_UPDATING, CONTROL_UNNAMED, 0, now()));
}

void status_init(struct status *s, struct control_status *words)
{
	memset(s, 0, sizeof(*s));
	s->words = words;
	lane_init(&s->main, &words->now);
	lane_init(&s->thread, &words->thread);
}

/* Its waits so far, that which lasts included. */
static uint64_t thread_waited(const struct status *s)
{
	uint64_t word = load(s->thread.word), spent = load(&s->thread.spent_ns[CONTROL_WAITING]);

	return control_activity_phase(word) == CONTROL_WAITING ? spent + since(word, now()) : spent;
}

void status_begin_sums(struct status *s)
{
	s->thread_waited_ns = thread_waited(s);
	status_enter(&s->main, CONTROL_SUMMING);
}

void status_end_sums(struct status *s)
{
	uint64_t waited = thread_waited(s);

	status_enter(&s->main, CONTROL_UPDATING);
	if (waited > s->thread_waited_ns)
		s->sums_waited_ns += waited - s->thread_waited_ns;
}

void status_set_loss(struct status *s, double loss)
{
	uint64_t bits;

	memcpy(&bits, &loss, sizeof(bits));
	store(&s->words->loss, bits);
	store(&s->words->has_loss, 1);
}

void status_set_step(struct status *s, uint64_t step)
{
	store(&s->words->step, step);
}

static uint64_t lane_take(struct status_lane *lane, enum control_phase phase)
{
	return atomic_exchange_explicit(&lane->spent_ns[phase], 0, memory_order_relaxed);
}

void status_complete(struct status *s, uint64_t step)
{
	struct control_status *words = s->words;
	uint64_t summing, waited = s->sums_waited_ns;

	status_enter(&s->main, CONTROL_COMPUTING);
	summing = lane_take(&s->main, CONTROL_SUMMING);
	waited = waited < summing ? waited : summing;
	s->sums_waited_ns = 0;
	store(&words->computing_ns, lane_take(&s->main, CONTROL_COMPUTING));
	store(&words->waiting_ns, lane_take(&s->main, CONTROL_WAITING) + waited);
	store(&words->updating_ns, lane_take(&s->main, CONTROL_UPDATING) + summing - waited);
	status_set_step(s, step);
}

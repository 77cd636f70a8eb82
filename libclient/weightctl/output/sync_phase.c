/*
 * The phases of weightd-sync, in words. A phase that is not here is of another release, and is printed by its name.
 */
#include "libclient/weightctl/output/sync_phase.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "libclient/weightctl/output/cli_error.h"
#include "libclient/weightctl/output/escape.h"
#include "libclient/weightctl/output/json_field.h"
#include "libclient/weightctl/output/size.h"

#define PERCENT_MIN 1 /* phases with a smaller share of the time are left out */
#define TEXT_SIZE 128 /* weightd-trace has no text that is longer */
#define STAYS_MAX 4096

struct stay {
	char sync[TEXT_SIZE], role[TEXT_SIZE], phase[TEXT_SIZE], comm[TEXT_SIZE];
	uint64_t pid;
	uint64_t took_ns; /* in all epochs */
};

static const struct word {
	const char *role, *phase, *text;
} words[] = {
	{"publisher", "attach", "borrowing the version"},
	{"publisher", "digest", "digesting it"},
	{"publisher", "prepare", "members preparing"},
	{"publisher", "compose", "composing a patch"},
	{"publisher", "open", "opening links"},
	{"publisher", "bytes", "moving bytes"},
	{"publisher", "stop", "ending what had broken"},
	{"publisher", "verify", "members verifying"},
	{"publisher", "commit", "members committing"},
	{"member", "want", "waiting for what the memory is for"},
	{"member", "create", "making memory"},
	{"member", "ready", "waiting for its turn"},
	{"member", "opening", "opening links"},
	{"member", "open", "waiting for the others' links"},
	{"member", "bytes", "moving bytes"},
	{"member", "verify", "verifying"},
	{"member", "verified", "waiting for the decision"},
	{"member", "record", "recording"},
	{"member", "commit", "publishing"},
};

static bool packet_copy_text(const json_t *packet, const char *key, char ret[TEXT_SIZE])
{
	const char *text = json_field_text(packet, key);

	if (!text || strlen(text) >= TEXT_SIZE)
		return false;
	(void)strcpy(ret, text);
	return true;
}

static bool read_stay(const json_t *packet, struct stay *ret)
{
	const char *act = json_field_text(packet, "act");

	*ret = (struct stay){.pid = json_field_number(packet, "pid", 0),
			     .took_ns = json_field_number(packet, "took_ns", UINT64_MAX)};
	if (!packet_copy_text(packet, "comm", ret->comm))
		(void)strcpy(ret->comm, "-");
	return act && !strcmp(act, "sync_phase") && ret->took_ns < UINT64_MAX &&
	       packet_copy_text(packet, "sync", ret->sync) &&
	       packet_copy_text(packet, "role", ret->role) &&
	       packet_copy_text(packet, "phase", ret->phase);
}

/* True for the same program in the same part. */
static bool is_of_same(const struct stay *a, const struct stay *b)
{
	return a->pid == b->pid && !strcmp(a->sync, b->sync) && !strcmp(a->role, b->role);
}

static struct stay *sync_phases_find(const struct sync_phases *p, const struct stay *stay)
{
	for (size_t i = 0; i < p->n_stays; i++)
		if (is_of_same(&p->stays[i], stay) && !strcmp(p->stays[i].phase, stay->phase))
			return &p->stays[i];
	return NULL;
}

/* Saturates at the largest number of JSON. */
static uint64_t sync_phase_sum(uint64_t a, uint64_t b)
{
	return a < INT64_MAX - b ? a + b : INT64_MAX;
}

void sync_phases_take(struct sync_phases *p, const json_t *packet)
{
	struct stay stay, *known;

	if (!read_stay(packet, &stay) || p->n_stays == STAYS_MAX)
		return;
	known = sync_phases_find(p, &stay);
	if (known) {
		known->took_ns = sync_phase_sum(known->took_ns, stay.took_ns);
		return;
	}
	p->stays = cli_grown(p->stays, p->n_stays, sizeof(*p->stays));
	p->stays[p->n_stays++] = stay;
}

static const char *word_for(const struct stay *stay)
{
	for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++)
		if (!strcmp(words[i].role, stay->role) && !strcmp(words[i].phase, stay->phase))
			return words[i].text;
	return stay->phase;
}

/* All that the program of this one did. */
static void put_one(const struct sync_phases *p, const struct stay *first, bool is_over)
{
	char text[SIZE_TEXT_MAX];
	uint64_t all_ns = 0;
	double share;

	for (const struct stay *s = first; s < p->stays + p->n_stays; s++)
		all_ns = sync_phase_sum(all_ns, is_of_same(s, first) ? s->took_ns : 0);
	escape_text(stdout, first->comm);
	(void)printf(" %" PRIu64 ", ", first->pid);
	escape_text(stdout, first->role);
	(void)printf(": %s", size_duration(text, all_ns));
	for (const struct stay *s = first; s < p->stays + p->n_stays; s++) {
		share = all_ns ? 100 * (double)s->took_ns / (double)all_ns : 0;
		if (!is_of_same(s, first) || share < PERCENT_MIN)
			continue;
		(void)printf(", %.0f %% ", share);
		escape_text(stdout, word_for(s));
	}
	(void)puts(is_over ? "" : "; not over yet");
}

void sync_phases_put(const struct sync_phases *p, const char *sync, bool is_over)
{
	const struct stay *s, *before;

	for (s = p->stays; s < p->stays + p->n_stays; s++) {
		for (before = p->stays; before < s && !is_of_same(before, s);)
			before++;
		if (before == s && !strcmp(s->sync, sync))
			put_one(p, s, is_over);
	}
}

json_t *sync_phases_json(const struct sync_phases *p, const char *sync)
{
	json_t *list = json_array();

	for (const struct stay *s = p->stays; s < p->stays + p->n_stays; s++)
		if (!strcmp(s->sync, sync) &&
		    json_array_append_new(list, json_pack("{sI ss ss ss sI}", "pid",
							  (json_int_t)s->pid, "comm", s->comm,
							  "role", s->role, "phase", s->phase,
							  "took_ns", (json_int_t)s->took_ns)) < 0)
			cli_out_of_memory();
	return list;
}

void sync_phases_deinit(struct sync_phases *p)
{
	free(p->stays);
}

#include "tests/fake/failure.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/fake/state.h"

#define N_RULES_MAX 64

struct rule {
	char symbol[64], result[16];
	long skip, count; /* count < 0: for ever */
};

struct script {
	struct rule rules[N_RULES_MAX];
	size_t n;
};

static void read_script(const char *path, struct script *ret)
{
	FILE *f = fopen(path, "re");
	char line[256];

	ret->n = 0;
	while (f && ret->n < N_RULES_MAX && fgets(line, sizeof(line), f)) {
		struct rule *rule = &ret->rules[ret->n];

		*rule = (struct rule){.count = -1};
		if (sscanf(line, "%63s %15s %ld %ld", rule->symbol, rule->result, &rule->skip,
			   &rule->count) >= 2)
			ret->n++;
	}
	if (f)
		(void)fclose(f);
}

static void write_script(const char *path, const struct script *s)
{
	FILE *f = fopen(path, "we");

	for (size_t i = 0; f && i < s->n; i++)
		if (s->rules[i].count)
			(void)fprintf(f, "%s %s %ld %ld\n", s->rules[i].symbol, s->rules[i].result,
				      s->rules[i].skip, s->rules[i].count);
	if (f)
		(void)fclose(f);
}

static bool is_for(const struct rule *rule, const char *symbol)
{
	size_t n = strlen(rule->symbol);

	if (!strcmp(rule->symbol, "*"))
		return true;
	return !strncmp(rule->symbol, symbol, n) && (!symbol[n] || !strcmp(symbol + n, "_v2"));
}

/* The rule that makes this call fail, as `ret`; counts. */
static bool take_rule(const char *path, const char *symbol, struct rule *ret)
{
	struct script script;
	bool found = false, changed = false;

	state_lock();
	read_script(path, &script);
	for (size_t i = 0; i < script.n && !found; i++) {
		struct rule *rule = &script.rules[i];

		if (!is_for(rule, symbol) || !rule->count)
			continue;
		if (rule->skip > 0) {
			rule->skip--;
			changed = true;
			continue;
		}
		*ret = *rule;
		found = true;
		if (rule->count > 0) {
			rule->count--;
			changed = true;
		}
	}
	if (changed)
		write_script(path, &script);
	state_unlock();
	return found;
}

/* True while a line that makes this function hang is there; one that counts hangs for one call. */
static bool hangs_still(const char *path, const char *symbol)
{
	struct script script;
	bool found = false;

	state_lock();
	read_script(path, &script);
	state_unlock();
	for (size_t i = 0; i < script.n; i++)
		found |= is_for(&script.rules[i], symbol) && !strcmp(script.rules[i].result, "hang");
	return found;
}

cu_result failure_of(const char *symbol)
{
	char path[4096];
	struct rule rule;

	state_path("fail", path, sizeof(path));
	if (!*path || access(path, F_OK) < 0 || !take_rule(path, symbol, &rule))
		return CUDA_SUCCESS;
	if (!strcmp(rule.result, "die"))
		(void)kill(getpid(), SIGKILL);
	if (strcmp(rule.result, "hang"))
		return atoi(rule.result);
	/* One that hangs a number of calls hangs them until the file is gone. */
	while (rule.count < 0 ? hangs_still(path, symbol) : !access(path, F_OK))
		(void)nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
	return CUDA_SUCCESS;
}

/*
 * weightd makes the pages, so that the memory policy of this process has no effect on them unless weightd is asked for it.
 */
#include "libclient/connection/numa.h"

#include <errno.h>
#include <string.h>

#include "ipc/base/quote.h"
#include "libclient/connection/ask.h"
#include "libclient/connection/release.h"

/* The mode of a word, and what stands behind it: a list of nodes, or nothing. */
static bool find_mode(const char *words, enum numa_mode *ret, const char **ret_list)
{
	static const struct {
		const char *word;
		enum numa_mode mode;
		bool needs_list;
	} modes[] = {{"preferred", NUMA_PREFERRED, true}, {"interleave", NUMA_INTERLEAVE, false}};

	for (size_t i = 0; i < sizeof(modes) / sizeof(*modes); i++) {
		size_t n = strlen(modes[i].word);

		if (strncmp(words, modes[i].word, n) != 0)
			continue;
		*ret = modes[i].mode;
		*ret_list = words[n] == ':' ? words + n + 1 : "";
		return words[n] ? words[n] == ':' && words[n + 1] : !modes[i].needs_list;
	}
	*ret = NUMA_BIND;
	*ret_list = words;
	return *words;
}

static struct numa_policy prefer(unsigned node)
{
	struct numa_policy policy = {.mode = NUMA_PREFERRED};

	policy.nodes.bits[node / 64] = (uint64_t)1 << node % 64;
	return policy;
}

static int find_policy(const char *words, struct numa_policy *ret, struct sentence *s)
{
	const char *list;

	*ret = (struct numa_policy){.mode = NUMA_DEFAULT};
	if (!strcmp(words, "default"))
		return 0;
	if (!strcmp(words, "local"))
		*ret = prefer(numa_own_node());
	else if (!find_mode(words, &ret->mode, &list) || !numa_nodes_parse(list, &ret->nodes))
		return sentence_set(s, -EINVAL,
				    "%s names no NUMA nodes: use 0 or 0,2-3, preferred:NODES, "
				    "interleave, interleave:NODES, local or default",
				    quote_name(&(struct quote){0}, words));
	return 0;
}

/* The policy of the calling thread, or else the one node of its CPUs. */
static void find_implied(struct numa_policy *ret)
{
	unsigned node = numa_own_node();

	/* A filter of system calls may forbid even the question: then there is no policy. */
	if (numa_thread_policy(ret) < 0)
		ret->mode = NUMA_DEFAULT;
	if (ret->mode == NUMA_DEFAULT && numa_is_on_one_node(node))
		*ret = prefer(node);
}

int numa_find_wish(const char *words, const char *device, struct numa_wish *ret, struct sentence *s)
{
	bool is_host = !strcmp(device, "host");

	*ret = (struct numa_wish){.is_implied = !words};
	if (words && !is_host)
		return sentence_set(s, -EINVAL,
				    "memory of %s is on no NUMA node: --numa is for host memory",
				    device);
	if (words)
		return find_policy(words, &ret->policy, s);
	if (is_host)
		find_implied(&ret->policy);
	return 0;
}

int numa_ask(struct weightd *w, const struct numa_wish *wish)
{
	struct client_call call = {.op = WIRE_NUMA, .request.numa.mode = wish->policy.mode};
	bool is_placed = wish->policy.mode != NUMA_DEFAULT;
	int r;

	if (!is_placed && !w->is_placed)
		return 0;
	if (!w->has_numa)
		return wish->is_implied
			       ? 0
			       : release_too_old(w, &w->sentence, "place memory on NUMA nodes");
	memcpy(call.request.numa.nodes, wish->policy.nodes.bits, sizeof(call.request.numa.nodes));
	r = client_ask(w, &call);
	if (r == 0)
		w->is_placed = is_placed;
	if (r == -EINVAL && wish->is_implied && wish->policy.mode == NUMA_BIND)
		return sentence_set(&w->sentence, r,
				    "the memory policy of this process (numactl) cannot be used: %s; "
				    "or use --numa default",
				    w->sentence.text);
	/* Nor may the policy of a create before this one stay. */
	if (r < 0 && w->fd >= 0 && wish->is_implied)
		return numa_ask(w, &(struct numa_wish){.policy.mode = NUMA_DEFAULT});
	return r;
}

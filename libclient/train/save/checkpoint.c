#include "libclient/train/save/checkpoint.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define FOLDER_PREFIX "step-"
#define FOLDER_DIGITS 12

uint32_t checkpoint_owner(const struct weightd_plan *p, const struct weightd_train_tensor *t)
{
	uint64_t element = plan_elements(p, t).begin;
	uint32_t rank = 0;

	while (rank + 1 < p->n_ranks && element >= p->cuts[rank + 1])
		rank++;
	return rank;
}

struct plan_interval checkpoint_owned(const struct weightd_plan *p, uint32_t rank)
{
	struct plan_interval owned = {0, 0};

	for (uint32_t i = 0; i < p->n_tensors; i++) {
		const struct weightd_train_tensor *t = &p->tensors[i];
		struct plan_interval elements;

		if (!plan_is_trained(t) || !t->n_bytes || checkpoint_owner(p, t) != rank)
			continue;
		elements = plan_elements(p, t);
		if (owned.begin == owned.end)
			owned.begin = elements.begin;
		owned.end = elements.end;
	}
	return owned;
}

void checkpoint_files_find(const struct weightd_plan *p, struct checkpoint_files *ret)
{
	*ret = (struct checkpoint_files){.n = 0};
	for (uint32_t i = 0; i < p->n_tensors; i++)
		if (plan_is_trained(&p->tensors[i]) && p->tensors[i].n_bytes)
			ret->numbers[checkpoint_owner(p, &p->tensors[i])] = 1;
	for (uint32_t rank = 0; rank < p->n_ranks; rank++)
		if (ret->numbers[rank])
			ret->numbers[rank] = ++ret->n;
}

void checkpoint_file_name(const char *stem, uint32_t number, uint32_t n,
			  char ret[CHECKPOINT_NAME_MAX])
{
	(void)snprintf(ret, CHECKPOINT_NAME_MAX, "%s-%05u-of-%05u.safetensors", stem, number, n);
}

void checkpoint_file(const struct checkpoint_files *files, const char *stem, uint32_t rank,
		     char ret[CHECKPOINT_NAME_MAX])
{
	checkpoint_file_name(stem, files->numbers[rank], files->n, ret);
}

void checkpoint_folder_name(uint64_t step, char ret[CHECKPOINT_NAME_MAX])
{
	(void)snprintf(ret, CHECKPOINT_NAME_MAX, FOLDER_PREFIX "%0*" PRIu64, FOLDER_DIGITS, step);
}

bool checkpoint_folder_parse(const char *name, uint64_t *ret_step)
{
	char again[CHECKPOINT_NAME_MAX];

	if (sscanf(name, FOLDER_PREFIX "%" SCNu64, ret_step) != 1)
		return false;
	checkpoint_folder_name(*ret_step, again);
	return strcmp(name, again) == 0;
}

const struct checkpoint_state checkpoint_params = {.suffix = "", .kind = WEIGHTD_KIND_PARAM};

bool checkpoint_state(const struct weightd_plan *p, uint32_t index, struct checkpoint_state *ret)
{
	static const char *const moments[][2] = {
		[WEIGHTD_ADAMW] = {"exp_avg", "exp_avg_sq"},
		[WEIGHTD_ADAM] = {"exp_avg", "exp_avg_sq"},
		[WEIGHTD_SGD] = {"momentum_buffer"},
	};
	bool has_master = plan_has_master(p);
	const char *name = CHECKPOINT_MASTER;

	*ret = (struct checkpoint_state){.kind = WEIGHTD_KIND_MASTER};
	if (!has_master || index) {
		ret->kind = WEIGHTD_KIND_MOMENTS;
		ret->moment = index - has_master;
		if (ret->moment >= p->n_moments)
			return false;
		name = moments[p->optimizer][ret->moment];
	}
	(void)snprintf(ret->suffix, sizeof(ret->suffix), ".%s", name);
	return true;
}

/*
 * The dimensions are those in which Megatron-LM and vLLM cut the modules of these names. Tensors of other names, those of
 * quantised models among them, have no rule on purpose: a guess would be wrong in silence.
 */
#include <string.h>

#include "ipc/base/num.h"
#include "ipc/reshard/slicing.h"

#define WHOLE                                                                                      \
	SLICING_WHOLE,                                                                             \
	{                                                                                          \
	}
#define EVEN SLICING_EVEN
#define RAGGED SLICING_RAGGED
#define HEADS SLICING_HEADS
#define KV SLICING_KV_HEADS

/* Modules of torch.nn.Linear: dimension 0 is that of outputs. A rank adds the bias of a sum over ranks once. */
static const struct slicing_rule llama[] = {
	{"*embed_tokens.weight", 0, {RAGGED}},
	{"*lm_head.weight", 0, {RAGGED}},
	{"*norm.weight", WHOLE},
	{"*.rotary_emb.inv_freq", WHOLE},
	{"*.self_attn.q_proj.weight", 0, {HEADS}},
	{"*.self_attn.q_proj.bias", 0, {HEADS}},
	{"*.self_attn.[kv]_proj.weight", 0, {KV}},
	{"*.self_attn.[kv]_proj.bias", 0, {KV}},
	{"*.self_attn.qkv_proj.weight", 0, {HEADS, KV, KV}},
	{"*.self_attn.qkv_proj.bias", 0, {HEADS, KV, KV}},
	{"*.self_attn.o_proj.weight", 1, {HEADS}},
	{"*.self_attn.o_proj.bias", WHOLE},
	{"*.gate_proj.weight", 0, {EVEN}},
	{"*.gate_proj.bias", 0, {EVEN}},
	{"*.up_proj.weight", 0, {EVEN}},
	{"*.up_proj.bias", 0, {EVEN}},
	{"*.gate_up_proj.weight", 0, {EVEN, EVEN}},
	{"*.down_proj.weight", 1, {EVEN}},
	{"*.down_proj.bias", WHOLE},
	{},
};

/* Each rank has a part of all experts, and routes as the others do. The first two are of experts in one tensor. */
static const struct slicing_rule experts[] = {
	{"*.mlp.experts.gate_up_proj", 1, {EVEN, EVEN}}, {"*.mlp.experts.down_proj", 2, {EVEN}},
	{"*.experts.*.w[13].weight", 0, {EVEN}},         {"*.experts.*.w2.weight", 1, {EVEN}},
	{"*.block_sparse_moe.gate.weight", WHOLE},       {"*.mlp.gate.weight", WHOLE},
	{"*.mlp.shared_expert_gate.weight", WHOLE},      {},
};

/* Attention with latent vectors, which every rank computes. */
static const struct slicing_rule latent[] = {
	{"*.self_attn.q_a_proj.weight", WHOLE},
	{"*.self_attn.q_b_proj.weight", 0, {HEADS}},
	{"*.self_attn.kv_a_proj_with_mqa.weight", WHOLE},
	{"*.self_attn.kv_b_proj.weight", 0, {HEADS}},
	{},
};

/* Modules of transformers' Conv1D: dimension 1 is that of outputs. */
static const struct slicing_rule gpt2[] = {
	{"*wte.weight", 0, {RAGGED}},
	{"*lm_head.weight", 0, {RAGGED}},
	{"*wpe.weight", WHOLE},
	{"*ln_[12f].weight", WHOLE},
	{"*ln_[12f].bias", WHOLE},
	{"*.attn.c_attn.weight", 1, {HEADS, HEADS, HEADS}},
	{"*.attn.c_attn.bias", 0, {HEADS, HEADS, HEADS}},
	{"*.attn.c_proj.weight", 0, {HEADS}},
	{"*.attn.c_proj.bias", WHOLE},
	{"*.attn.bias", WHOLE},
	{"*.attn.masked_bias", WHOLE},
	{"*.mlp.c_fc.weight", 1, {EVEN}},
	{"*.mlp.c_fc.bias", 0, {EVEN}},
	{"*.mlp.c_proj.weight", 0, {EVEN}},
	{"*.mlp.c_proj.bias", WHOLE},
	{},
};

static const struct slicing_ready ready[] = {
	{"deepseek_v2", {latent, llama, experts}},
	{"gemma", {llama}},
	{"gemma2", {llama}},
	{"gpt2", {gpt2}},
	{"granite", {llama}},
	{"llama", {llama}},
	{"mistral", {llama}},
	{"mixtral", {llama, experts}},
	{"phi3", {llama}},
	{"qwen2", {llama}},
	{"qwen2_moe", {llama, experts}},
	{"qwen3", {llama}},
	{"qwen3_moe", {llama, experts}},
};

const struct slicing_ready *slicing_ready_at(size_t i)
{
	return i < ARRAY_LEN(ready) ? &ready[i] : NULL;
}

const struct slicing_ready *slicing_ready_find(const char *model_type)
{
	for (size_t i = 0; i < ARRAY_LEN(ready); i++)
		if (!strcmp(ready[i].model_type, model_type))
			return &ready[i];
	return NULL;
}

"""Small models of transformers with random values, as save_pretrained() writes them."""
import torch
import transformers

TEXT = {"vocab_size": 128, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "max_position_embeddings": 64, "pad_token_id": 0}
TOKENS = [[3, 4, 5, 6, 7, 8, 9, 10], [11, 12, 13, 14, 15, 16, 17, 18]]
MODELS = {
    "Llama": ("LlamaForCausalLM", TEXT | {"num_key_value_heads": 2}),
    "Qwen2": ("Qwen2ForCausalLM", TEXT | {"num_key_value_heads": 2, "tie_word_embeddings": True}),
    "Mixtral": ("MixtralForCausalLM", TEXT | {"num_key_value_heads": 2, "num_local_experts": 4}),
    "Bert": ("BertModel", TEXT),
    "GPT2": ("GPT2LMHeadModel", {"vocab_size": 128, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "T5": ("T5ForConditionalGeneration", {"vocab_size": 128, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}),
    "Whisper": ("WhisperForConditionalGeneration", {
        "vocab_size": 128, "num_mel_bins": 16, "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 64,
        "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 64, "max_source_positions": 20,
        "max_target_positions": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}),
    "DeepseekV3": ("DeepseekV3ForCausalLM", TEXT | {
        "num_key_value_heads": 4, "moe_intermediate_size": 16, "n_shared_experts": 1, "n_routed_experts": 8, "kv_lora_rank": 16,
        "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "n_group": 2, "topk_group": 1,
        "num_experts_per_tok": 2, "first_k_dense_replace": 1}),
}
FUSED = {"Mixtral", "DeepseekV3"}  # one tensor for all experts in the module, one for each in the file


class Saved:
    """A model that save_pretrained() wrote, as from_pretrained() reads it."""

    def __init__(self, name, folder):
        architecture, values = MODELS[name]
        self.type, self.name, self.folder = getattr(transformers, architecture), name, folder
        torch.manual_seed(1)
        model = self.type(self.type.config_class(**values))
        with torch.no_grad():
            for _, buffer in model.named_buffers():  # the router's correction of DeepSeek, zero when it is made
                if buffer.is_floating_point():
                    buffer.add_(torch.randn_like(buffer) / 8)
        model.save_pretrained(folder)
        self.reference = self.type.from_pretrained(folder)

    def compute(self, model):
        tokens = torch.tensor(TOKENS)
        inputs = {"input_ids": tokens}
        if self.name == "Whisper":
            inputs = {"input_features": torch.linspace(-1, 1, 2 * 16 * 40).reshape(2, 16, 40)}
        if model.config.is_encoder_decoder:
            inputs["decoder_input_ids"] = tokens
        with torch.no_grad():
            return model.eval()(**inputs)[0]

    def check(self, way, model, weights):
        """Returns the share of the parameters' bytes that is weightd's."""
        assert torch.equal(self.compute(model), self.compute(self.reference)), way
        sizes = {p: p.numel() * p.element_size() for p in model.parameters()}
        begin = weights._memory.address
        ours = sum(size for p, size in sizes.items() if begin <= p.data_ptr() < begin + weights.nbytes)
        share = ours / sum(sizes.values())
        print(f"{self.name}: {way}: {share:.1%} of {sum(sizes.values())} bytes are weightd's")
        return share

    def make_empty(self, weightd):
        with weightd.torch.meta_parameters():
            return self.type(self.reference.config)

"""
Models with random values, made on the spot: models.py SIZE KIND FOLDER [KIND FOLDER]... SIZE is "small" (a few MiB,
for tests) or "large" (60 to 130 MiB).
"""
import pathlib
import sys

import torch

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"the cat sat on a mat and saw many small weights".split()]


def llama(folder, is_large):
    import transformers

    hidden, layers, words = (512, 8, 8192) if is_large else (128, 4, 1024)
    config = transformers.LlamaConfig(
        vocab_size=words, hidden_size=hidden, intermediate_size=hidden * 3, num_hidden_layers=layers,
        num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=256, pad_token_id=0,
        bos_token_id=1, eos_token_id=2)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


def bert(folder, is_large):
    """A model of sentence-transformers: an encoder, a tokenizer and a pooling."""
    import transformers
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    hidden, layers, words = (512, 8, 8192) if is_large else (128, 2, 64)
    inner = pathlib.Path(folder, "encoder")
    vocabulary = {word: i for i, word in enumerate(WORDS)}
    transformers.BertTokenizerFast(vocab=vocabulary, model_max_length=64).save_pretrained(inner)
    transformers.BertModel(transformers.BertConfig(
        vocab_size=words, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=8,
        intermediate_size=hidden * 4, max_position_embeddings=64)).save_pretrained(inner)
    encoder = Transformer(str(inner))
    SentenceTransformer(modules=[encoder, Pooling(hidden)]).save(str(folder))
    for file in sorted(inner.iterdir()):
        file.unlink()
    inner.rmdir()


def ddpm(folder, is_large):
    """A pipeline of diffusers, of which the weights are in a folder of its component."""
    import diffusers

    channels = (64, 128, 256) if is_large else (32, 32)
    kinds = len(channels) - 1
    unet = diffusers.UNet2DModel(
        sample_size=32, in_channels=3, out_channels=3, layers_per_block=2 if is_large else 1,
        block_out_channels=channels, norm_num_groups=32,
        down_block_types=("DownBlock2D",) * kinds + ("AttnDownBlock2D",),
        up_block_types=("AttnUpBlock2D",) + ("UpBlock2D",) * kinds)
    diffusers.DDPMPipeline(unet, diffusers.DDPMScheduler(num_train_timesteps=100)).save_pretrained(folder)


def gguf(folder, is_large):
    """A Llama of 16-bit floats, with a vocabulary of bytes."""
    import gguf as package

    hidden, layers, words, heads = (512, 8, 4096, 8) if is_large else (128, 4, 512, 4)
    inner = hidden * 3
    writer = package.GGUFWriter(str(pathlib.Path(folder, "model.gguf")), "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_rope_dimension_count(hidden // heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(words)
    add_vocabulary(package, writer, words)
    random = torch.Generator().manual_seed(0)

    def add(name, *shape, is_norm=False):
        values = torch.ones(shape) if is_norm else torch.randn(shape, generator=random) * 0.02
        writer.add_tensor(name, values.numpy().astype("float32" if is_norm else "float16"))

    add("token_embd.weight", words, hidden)
    for block in (f"blk.{i}." for i in range(layers)):
        add(block + "attn_norm.weight", hidden, is_norm=True)
        add(block + "ffn_norm.weight", hidden, is_norm=True)
        for part in "qkv":
            add(f"{block}attn_{part}.weight", hidden, hidden)
        add(block + "attn_output.weight", hidden, hidden)
        add(block + "ffn_gate.weight", inner, hidden)
        add(block + "ffn_up.weight", inner, hidden)
        add(block + "ffn_down.weight", hidden, inner)
    add("output_norm.weight", hidden, is_norm=True)
    add("output.weight", words, hidden)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_vocabulary(package, writer, n_words):
    """Three control tokens, all bytes, and words that no text has."""
    kinds = package.TokenType
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL] + [kinds.BYTE] * 256
    tokens += [f"w{i}" for i in range(n_words - len(tokens))]
    types += [kinds.NORMAL] * (n_words - len(types))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * n_words)
    writer.add_token_types([int(kind) for kind in types])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


KINDS = {"llama": llama, "bert": bert, "ddpm": ddpm, "gguf": gguf}


def make(size, folders):
    """Makes the models of these kinds in their folders, which do not exist yet."""
    for kind, folder in folders.items():
        pathlib.Path(folder).mkdir(parents=True)
        torch.manual_seed(0)
        KINDS[kind](folder, size == "large")


def main():
    size, *words = sys.argv[1:]
    make(size, dict(zip(words[::2], words[1::2])))


if __name__ == "__main__":
    main()

"""Loads of what one rank of tensor parallelism has of a model."""
import json
import os
import pathlib
import re
import subprocess

import pytest
from integration.load.test_load import write_index, write_model
from integration.load.test_selection import attributes
from lib import features

WIDTH, HEAD, HEADS, KV_HEADS, INNER, EXPERTS, VOCABULARY = 24, 4, 16, 4, 48, 3, 53

Q, DOWN, UP = (f"model.layers.0.{name}.weight" for name in ("self_attn.q_proj", "mlp.down_proj", "mlp.up_proj"))

CONFIG = {"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS}
CONFIGS = {"gpt2": {"n_head": HEADS}, "deepseek_v2": {"num_attention_heads": HEADS}}


def decoder(attention, mlp):
    """Shapes of two layers, with how ranks share each tensor: see slices_of()."""
    tensors = {"model.embed_tokens.weight": ([VOCABULARY, WIDTH], "ragged"), "model.norm.weight": ([WIDTH], "same"),
               "lm_head.weight": ([VOCABULARY, WIDTH], "ragged")}
    for i in range(2):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{i}.{norm}.weight"] = ([WIDTH], "same")
        for folder, part in (("self_attn", attention), ("mlp", mlp)):
            for name, tensor in part.items():
                tensors[f"model.layers.{i}.{folder}.{name}"] = tensor
    return tensors


QUERIES, KEYS = HEADS * HEAD, KV_HEADS * HEAD
SEPARATE = {"q_proj.weight": ([QUERIES, WIDTH], "rows"), "k_proj.weight": ([KEYS, WIDTH], "kv"), "v_proj.weight": ([KEYS, WIDTH], "kv"),
            "o_proj.weight": ([WIDTH, QUERIES], "columns")}
BIASED = SEPARATE | {"q_proj.bias": ([QUERIES], "rows"), "k_proj.bias": ([KEYS], "kv"), "v_proj.bias": ([KEYS], "kv")}
NORMED = SEPARATE | {"q_norm.weight": ([HEAD], "same"), "k_norm.weight": ([HEAD], "same")}
FUSED = {"qkv_proj.weight": ([QUERIES + 2 * KEYS, WIDTH], "qkv"), "o_proj.weight": ([WIDTH, QUERIES], "columns")}
LATENT = {"q_a_proj.weight": ([8, WIDTH], "same"), "q_a_layernorm.weight": ([8], "same"), "q_b_proj.weight": ([HEADS * 6, 8], "rows"),
          "kv_a_proj_with_mqa.weight": ([10, WIDTH], "same"), "kv_a_layernorm.weight": ([8], "same"),
          "kv_b_proj.weight": ([HEADS * 8, 8], "rows"), "o_proj.weight": ([WIDTH, QUERIES], "columns")}
GATED = {"gate_proj.weight": ([INNER, WIDTH], "rows"), "up_proj.weight": ([INNER, WIDTH], "rows"),
         "down_proj.weight": ([WIDTH, INNER], "columns")}
HALVES = {"gate_up_proj.weight": ([2 * INNER, WIDTH], "halves"), "down_proj.weight": ([WIDTH, INNER], "columns")}
ROUTED = {"gate.weight": ([EXPERTS, WIDTH], "same")} | {f"experts.{i}.{name}": tensor for i in range(EXPERTS) for name, tensor in GATED.items()}
SHARED = {f"shared_expert.{name}": tensor for name, tensor in GATED.items()} | {"shared_expert_gate.weight": ([1, WIDTH], "same")}
TOGETHER = {"gate.weight": ([EXPERTS, WIDTH], "same"), "experts.gate_up_proj": ([EXPERTS, 2 * INNER, WIDTH], "halves1"),
            "experts.down_proj": ([EXPERTS, WIDTH, INNER], "columns2")}


def mixtral():
    experts = {"gate.weight": ([EXPERTS, WIDTH], "same")}
    for i in range(EXPERTS):
        experts |= {f"experts.{i}.w1.weight": ([INNER, WIDTH], "rows"), f"experts.{i}.w3.weight": ([INNER, WIDTH], "rows"),
                    f"experts.{i}.w2.weight": ([WIDTH, INNER], "columns")}
    return {name.replace(".mlp.", ".block_sparse_moe."): tensor for name, tensor in decoder(SEPARATE, experts).items()}


def gpt2():
    tensors = {"wte.weight": ([VOCABULARY, QUERIES], "ragged"), "wpe.weight": ([9, QUERIES], "same"),
               "ln_f.weight": ([QUERIES], "same"), "ln_f.bias": ([QUERIES], "same")}
    layer = {"ln_1.weight": ([QUERIES], "same"), "ln_1.bias": ([QUERIES], "same"), "ln_2.weight": ([QUERIES], "same"),
             "ln_2.bias": ([QUERIES], "same"), "attn.bias": ([1, 1, 9, 9], "same"),
             "attn.c_attn.weight": ([QUERIES, 3 * QUERIES], "thirds1"), "attn.c_attn.bias": ([3 * QUERIES], "thirds"),
             "attn.c_proj.weight": ([QUERIES, QUERIES], "rows"), "attn.c_proj.bias": ([QUERIES], "same"),
             "mlp.c_fc.weight": ([QUERIES, INNER], "columns"), "mlp.c_fc.bias": ([INNER], "rows"),
             "mlp.c_proj.weight": ([INNER, QUERIES], "rows"), "mlp.c_proj.bias": ([QUERIES], "same")}
    return tensors | {f"h.{i}.{name}": tensor for i in range(2) for name, tensor in layer.items()}


MODELS = {"llama": decoder(SEPARATE, GATED), "mistral": decoder(SEPARATE, GATED), "gemma": decoder(SEPARATE, GATED),
          "gemma2": decoder(SEPARATE, GATED), "granite": decoder(SEPARATE, GATED), "qwen2": decoder(BIASED, GATED),
          "qwen3": decoder(NORMED, GATED), "phi3": decoder(FUSED, HALVES), "qwen2_moe": decoder(BIASED, ROUTED | SHARED),
          "qwen3_moe": decoder(NORMED, TOGETHER), "mixtral": mixtral(), "deepseek_v2": decoder(LATENT, ROUTED), "gpt2": gpt2()}


def slices_of(numpy, whole, how, world):
    """The slices of all ranks: a reference of its own, by heads and by torch.chunk()'s rule."""
    if how == "same":
        return [whole] * world
    if how in ("rows", "columns", "columns2"):
        return numpy.split(whole, world, axis={"rows": 0, "columns": 1, "columns2": 2}[how])
    if how == "ragged":
        step = -(-len(whole) // world)
        return [whole[rank * step:(rank + 1) * step] for rank in range(world)]
    if how == "kv":
        heads = numpy.split(whole, KV_HEADS)
        return [numpy.concatenate(heads[rank * KV_HEADS // world:max((rank + 1) * KV_HEADS // world, rank * KV_HEADS // world + 1)])
                for rank in range(world)]
    axis = int(how.endswith("1"))
    parts = {"qkv": ([QUERIES, QUERIES + KEYS], ["rows", "kv", "kv"]), "halves": (2, ["rows"] * 2), "halves1": (2, ["columns"] * 2),
             "thirds": (3, ["rows"] * 3), "thirds1": (3, ["columns"] * 3)}[how]
    shared = [slices_of(numpy, part, kind, world) for part, kind in zip(numpy.split(whole, parts[0], axis=axis), parts[1])]
    return [numpy.concatenate(of_rank, axis=axis) for of_rank in zip(*shared)]


def put_together(numpy, slices, how):
    """The whole tensor, by concatenation alone, of all ranks' slices."""
    axis = 1 if how in ("columns", "halves1", "thirds1") else 2 if how == "columns2" else 0
    if how == "same":
        assert all((part == slices[0]).all() for part in slices)
        return slices[0]
    if how in ("rows", "columns", "columns2", "ragged"):
        return numpy.concatenate(slices, axis=axis)
    if how == "kv":
        return numpy.concatenate(slices[::max(len(slices) // KV_HEADS, 1)])
    if how == "qkv":
        q, k = QUERIES // len(slices), max(KEYS // len(slices), HEAD)
        parts = [numpy.split(part, [q, q + k]) for part in slices]
        return numpy.concatenate([put_together(numpy, [part[i] for part in parts], "kv" if i else "rows") for i in range(3)])
    parts = [numpy.split(part, 2 if "halves" in how else 3, axis=axis) for part in slices]
    return numpy.concatenate([numpy.concatenate(part, axis=axis) for part in zip(*parts)], axis=axis)


def write_checkpoint(folder, numpy, model_type, tensors=None, config=None):
    """Files, a configuration, and the whole tensors with how they are shared."""
    rng = numpy.random.default_rng(5)
    made = {name: (rng.integers(-1 << 15, 1 << 15, shape, dtype=numpy.int16), how)
            for name, (shape, how) in (tensors or MODELS[model_type]).items()}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type} | (config or CONFIGS.get(model_type, CONFIG))))
    names = list(made)
    files = {f"model-0000{i + 1}-of-00002.safetensors": names[i::2] for i in range(min(2, len(names)))}
    for file, part in files.items():
        write_model(folder / file, {name: ("I16", list(made[name][0].shape), made[name][0].tobytes()) for name in part})
    write_index(folder / "model.safetensors.index.json", {name: file for file, part in files.items() for name in part})
    return made


def load_slices(weightd, path, world, **options):
    """{name: the slices of all ranks}"""
    slices = {}
    for rank in range(world):
        weightd.load(f"r{world}-{rank}", path, tp=(rank, world), **options)
        with weightd.attach(f"r{world}-{rank}") as buffer:
            for name in buffer:
                slices.setdefault(name, []).append(buffer[name].numpy().copy())
    return slices


@pytest.mark.plain  # by the library in Python, which is plain in every tree
@pytest.mark.parametrize("model_type", MODELS)
def test_slices_put_together_are_the_whole(weightd, tmp_path, numpy, model_type):
    made = write_checkpoint(tmp_path / "m", numpy, model_type)
    for world in (2, 4, 8):
        slices = load_slices(weightd, tmp_path / "m", world)
        assert slices.keys() == made.keys()
        for name, (whole, how) in made.items():
            for rank, reference in enumerate(slices_of(numpy, whole, how, world)):
                assert slices[name][rank].shape == reference.shape, (name, rank, world)
                assert (slices[name][rank] == reference).all(), (name, rank, world)
            assert (put_together(numpy, slices[name], how) == whole).all(), (name, world)


@pytest.mark.plain
def test_ranks_compute_what_the_model_computes(daemon, tmp_path):
    """Layers of transformers: their sums over the slices of two ranks."""
    features.require("torch2")
    probe = subprocess.run([features.TORCH2, "-c", "import importlib.util as u; exit(not u.find_spec('transformers'))"])
    features.require("torch2", "no transformers there", probe.returncode == 0)
    done = subprocess.run([features.TORCH2, pathlib.Path(__file__).with_name("sliced_layers.py"), features.BUILD / "weightctl", tmp_path],
                          env=os.environ | {"WEIGHTD_SOCKET": daemon.socket}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0 and "deepseek_v2" in done.stdout, done.stdout


def bytes_read():
    """By this process, in calls of the read family."""
    with open("/proc/self/io") as f:
        return int(re.search(r"rchar: (\d+)", f.read())[1])


def test_a_rank_reads_its_part_alone(daemon, weightd, tmp_path, numpy):
    """Rows are ranges of the file; of columns the bytes between them are read too, if they are short."""
    tensors = {"model.layers.0.mlp.up_proj.weight": ([512, 2048], "rows"), "model.layers.0.mlp.down_proj.weight": ([32, 32768], "columns")}
    made = write_checkpoint(tmp_path / "m", numpy, "llama", tensors)
    planned = json.loads(daemon.ctl("load", "m", str(tmp_path / "m"), "--tp", "1/4", "--dry-run", "--json").stdout)
    whole = sum(tensor.nbytes for tensor, _ in made.values())
    assert (planned["read"], planned["memory"]) == (whole // 4, whole // 4)
    assert [t["shape"] for t in planned["tensors"]] == [[128, 2048], [32, 8192]]
    before = bytes_read()
    weightd.load("m", tmp_path / "m", tp=(1, 4), read="buffered")
    assert whole // 4 <= bytes_read() - before < whole // 4 + 8192, "headers and configuration beside the part"


@pytest.mark.plain
@pytest.mark.parametrize("kv_heads, world, heads", [(4, 2, [[0, 1], [2, 3]]), (2, 4, [[0], [0], [1], [1]]), (1, 4, [[0]] * 4)])
def test_fewer_heads_of_keys_than_ranks_are_shared(weightd, tmp_path, numpy, kv_heads, world, heads):
    name = "model.layers.0.self_attn.k_proj.weight"
    made = write_checkpoint(tmp_path / "m", numpy, "llama", {name: ([kv_heads * HEAD, WIDTH], "kv")},
                            {"num_attention_heads": 16, "num_key_value_heads": kv_heads})
    whole = made[name][0].reshape(kv_heads, HEAD, WIDTH)
    for part, of_rank in zip(load_slices(weightd, tmp_path / "m", world)[name], heads):
        assert (part == numpy.concatenate([whole[head] for head in of_rank])).all()


RULES = """\
# comments, and lines of nothing

*.special.weight\t1 ragged
  *.fused 0   kv_heads heads
*.plain 1
*.norm.weight whole
heads = 8
kv_heads = 4
use = llama
"""


def test_a_file_of_rules(daemon, weightd, tmp_path, numpy):
    tensors = {"a.special.weight": ([2, 7], "same"), "a.fused": ([36], "same"), "a.plain": ([3, 8], "same"), "b.norm.weight": ([5], "same"),
               "model.layers.0.self_attn.q_proj.weight": ([16, 3], "same")}
    made = {name: whole for name, (whole, _) in write_checkpoint(tmp_path / "m", numpy, "unknown", tensors).items()}
    (tmp_path / "rules").write_text(RULES)
    slices = load_slices(weightd, tmp_path / "m", 4, tp_rules=tmp_path / "rules")
    fused = made["a.fused"]
    for rank in range(4):
        part = {name: of_ranks[rank] for name, of_ranks in slices.items()}
        assert (part["a.special.weight"] == made["a.special.weight"][:, 2 * rank:2 * rank + 2]).all()
        assert (part["a.fused"] == numpy.concatenate([fused[3 * rank:3 * rank + 3], fused[12 + 6 * rank:12 + 6 * rank + 6]])).all()
        assert (part["a.plain"] == made["a.plain"][:, 2 * rank:2 * rank + 2]).all()
        assert (part["b.norm.weight"] == made["b.norm.weight"]).all()
        assert (part["model.layers.0.self_attn.q_proj.weight"] == made["model.layers.0.self_attn.q_proj.weight"][4 * rank:4 * rank + 4]).all()
    assert {key: attributes(daemon, "r4-3")[key] for key in ("tp", "tp_rules")} == {"tp": "3/4", "tp_rules": "rules"}


@pytest.mark.plain
def test_more_ranks_than_rows_leave_some_with_nothing(weightd, tmp_path, numpy):
    (whole, _), = write_checkpoint(tmp_path / "m", numpy, "llama", {"lm_head.weight": ([5, 3], "ragged")}).values()
    parts = load_slices(weightd, tmp_path / "m", 8)["lm_head.weight"]
    assert [len(part) for part in parts] == [1] * 5 + [0] * 3 and (numpy.concatenate(parts) == whole).all()


def test_slices_of_a_selection_are_cast(daemon, weightd, tmp_path, numpy):
    rng = numpy.random.default_rng(1)
    whole = {"model.layers.0.mlp.down_proj.weight": rng.random((64, 3000), dtype=numpy.float32),
             "model.layers.0.mlp.gate_up_proj.weight": rng.random((3000, 64), dtype=numpy.float32)}
    left_out = {"model.layers.0.self_attn.q_proj.weight": numpy.zeros((3, 3), dtype=numpy.float32)}
    write_model(tmp_path / "m.safetensors", {name: ("F32", list(a.shape), a.tobytes()) for name, a in (whole | left_out).items()})
    slices = load_slices(weightd, tmp_path / "m.safetensors", 4, tp_rules="llama", dtype="F16", exclude="*.q_proj.*")
    assert slices.keys() == whole.keys()
    for rank in range(4):
        down, both = (slices[name][rank] for name in whole)
        assert (down == whole["model.layers.0.mlp.down_proj.weight"][:, 750 * rank:750 * (rank + 1)].astype(numpy.float16)).all()
        halves = [half[375 * rank:375 * (rank + 1)] for half in numpy.split(whole["model.layers.0.mlp.gate_up_proj.weight"], 2)]
        assert (both == numpy.concatenate(halves).astype(numpy.float16)).all()
    daemon.ctl("verify", "r4-3")
    assert attributes(daemon, "r4-3").items() >= {"tp": "3/4", "tp_rules": "llama", "cast": "F16", "exclude": "*.q_proj.*"}.items()


def test_the_only_rank_has_the_file(daemon, tmp_path, numpy):
    made = write_checkpoint(tmp_path / "m", numpy, "llama")
    write_model(tmp_path / "m.safetensors", {name: ("I16", list(whole.shape), whole.tobytes()) for name, (whole, _) in made.items()})
    (tmp_path / "config.json").write_bytes((tmp_path / "m/config.json").read_bytes())
    digests = []
    for name, options in (("m", ["--tp", "0/1"]), ("plain", [])):
        daemon.ctl("load", name, str(tmp_path / "m.safetensors"), *options)
        digests.append(json.loads(daemon.ctl("show", name, "--json").stdout)["versions"][-1]["digest"])
    assert digests[0] == digests[1]


def test_a_version_has_its_rank_until_the_next_load(daemon, tmp_path, numpy):
    write_checkpoint(tmp_path / "m", numpy, "qwen2")

    def version(*options):
        return json.loads(daemon.ctl("load", "--json", "-q", "--if-needed", "--new-layout", "m", str(tmp_path / "m"), *options).stdout)["version"]
    assert [version("--tp", "0/2"), version("--tp", "0/2"), version("--tp", "1/2"), version(), version()] == [1, 1, 2, 3, 3]
    assert not {"tp", "tp_rules"} & attributes(daemon, "m").keys()
    assert version("--tp", "1/4") == 4 and attributes(daemon, "m")["tp"] == "1/4"


def test_tied_names_are_cut_as_one(daemon, weightd, tmp_path, numpy):
    layout = weightd.Layout()
    layout.add("model.embed_tokens.weight", "I16", [6, 4])
    layout.tie("lm_head.weight", "model.embed_tokens.weight")
    with weightd.create("source", layout) as writer:
        writer["model.embed_tokens.weight"].numpy()[:] = numpy.arange(24, dtype=numpy.int16).reshape(6, 4)
        writer.publish()
    daemon.ctl("save", "source", str(tmp_path / "saved"))
    daemon.ctl("load", "m", str(tmp_path / "saved"), "--tp", "1/2", "--tp-rules", "llama")
    with weightd.attach("m") as buffer:
        assert buffer["lm_head.weight"].tied_to == buffer["model.embed_tokens.weight"].index
        assert (buffer["lm_head.weight"].numpy() == numpy.arange(12, 24).reshape(3, 4)).all()
    (tmp_path / "rules").write_text("lm_head.weight 1\nuse = llama\n")
    refused = daemon.ctl("load", "n", str(tmp_path / "saved"), "--tp", "1/2", "--tp-rules", str(tmp_path / "rules"), check=False)
    assert refused.returncode == 1 and "is tied to" in refused.stderr and "cut them differently" in refused.stderr, refused.stderr


# --- Several ranks ---------------------------------------------------------------------------------

def digest(daemon, name):
    return json.loads(daemon.ctl("show", name, "--json").stdout)["versions"][-1]["digest"]


@pytest.mark.parametrize("model_type", ["llama", "phi3", "qwen3_moe", "gpt2"])
def test_ranks_loaded_at_once_are_those_loaded_alone(daemon, weightd, tmp_path, numpy, model_type):
    write_checkpoint(tmp_path / "m", numpy, model_type)
    results = weightd.load("m", tmp_path / "m", tp=(range(4), 4))
    for rank, result in enumerate(results):
        alone = weightd.load("alone", tmp_path / "m", tp=(rank, 4), new_layout=True)
        assert (result.digest, result.n_bytes, result.n_tensors) == (alone.digest, alone.n_bytes, alone.n_tensors)
        daemon.ctl("verify", f"m-tp{rank}")
        assert attributes(daemon, f"m-tp{rank}") == attributes(daemon, "alone") and attributes(daemon, "alone")["tp"] == f"{rank}/4"


def test_several_ranks_read_each_byte_once(daemon, weightd, tmp_path, numpy):
    """Also of tensors that are longer than what is read at once, and cast."""
    rng = numpy.random.default_rng(4)
    whole = {Q: rng.random((64, 9001), dtype=numpy.float32), DOWN: rng.random((1501, 512), dtype=numpy.float32),
             "model.norm.weight": rng.random(700_001, dtype=numpy.float32), "lm_head.weight": rng.random((1021, 3), dtype=numpy.float32),
             "model.layers.0.mlp.gate_up_proj.weight": rng.random((256, 1501), dtype=numpy.float32)}
    write_model(tmp_path / "model.safetensors", {name: ("F32", list(a.shape), a.tobytes()) for name, a in whole.items()})
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "num_attention_heads": 16}))
    n_bytes = sum(a.nbytes for a in whole.values())
    for options in {}, {"dtype": "F16"}:
        before = bytes_read()
        results = weightd.load("m", tmp_path / "model.safetensors", tp=(range(4), 4), new_layout=True, **options)
        assert n_bytes <= bytes_read() - before < n_bytes + 16384, "headers and configurations beside the tensors"
        for rank, result in enumerate(results):
            assert result.digest == weightd.load("alone", tmp_path / "model.safetensors", tp=(rank, 4), new_layout=True, **options).digest
    before = bytes_read()
    weightd.load("rows", tmp_path / "model.safetensors", tp=([0, 1], 4), include=Q)
    assert bytes_read() - before < whole[Q].nbytes // 2 + 16384, "what neither has is not read"


def test_ranks_of_the_command_line(daemon, tmp_path, numpy):
    write_checkpoint(tmp_path / "m", numpy, "qwen2")
    loads = json.loads(daemon.ctl("load", "m", str(tmp_path / "m"), "--tp", "3,1/4", "--json", "-q").stdout)["loads"]
    assert [(load["name"], load["version"]) for load in loads] == [("m-tp3", 1), ("m-tp1", 1)]
    text = daemon.ctl("load", "m", str(tmp_path / "m"), "--tp", "all/4").stdout
    assert [line.split(" ")[0] for line in text.splitlines()] == ["m-tp0@1", "m-tp1@2", "m-tp2@1", "m-tp3@2"]
    assert loads[1]["digest"].removeprefix("xxh3:") in digest(daemon, "m-tp1")


@pytest.mark.parametrize("options, words", [
    (["--tp", "1,1/4"], "rank 1 is named twice"), (["--tp", "0,4/4"], "no rank 4 of 4"), (["--tp", "0,1/2", "--verify", "xxh3"], "without --verify"),
    (["--tp", "all/2", "--cache", "drop"], "--cache drop"), (["--tp", "all/3"], "3 ranks cannot share")])
def test_a_refusal_of_several_ranks_leaves_none(daemon, tmp_path, numpy, options, words):
    write_checkpoint(tmp_path / "m", numpy, "llama")
    refused = daemon.ctl("load", "m", str(tmp_path / "m"), *options, check=False)
    assert refused.returncode == 1 and words in refused.stderr, refused.stderr
    assert json.loads(daemon.ctl("ls", "--json").stdout)["buffers"] == []


def test_a_failure_leaves_no_rank(daemon, weightd, tmp_path, numpy):
    """A buffer of one rank with another layout, an interruption, and a file that is cut."""
    write_checkpoint(tmp_path / "m", numpy, "llama")
    weightd.load("m-tp1", tmp_path / "m", tp=(0, 1))
    with pytest.raises(weightd.Error, match="m-tp1"):
        weightd.load("m", tmp_path / "m", tp=(range(2), 2))
    assert [b["name"] for b in json.loads(daemon.ctl("ls", "--json").stdout)["buffers"]] == ["m-tp1"]
    with pytest.raises(ZeroDivisionError):
        weightd.load("n", tmp_path / "m", tp=(range(2), 2), progress=lambda phase, done, total: phase == "read" and 1 / 0)
    file = tmp_path / "m/model-00001-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(weightd.Error, match="model-00001"):
        weightd.load("n", tmp_path / "m", tp=(range(2), 2))
    assert [b["name"] for b in json.loads(daemon.ctl("ls", "--json").stdout)["buffers"]] == ["m-tp1"]


# --- Refusals --------------------------------------------------------------------------------------

@pytest.mark.parametrize("model_type, tensors, config, options, words", [
    ("llama", {Q: [16, 4]}, {"num_attention_heads": 4}, ["--tp", "0/8"], [f"dimension 0 of tensor '{Q}'", "8 ranks cannot share its 4 heads", "of 'llama'"]),
    ("llama", {Q: [15, 4]}, {"num_attention_heads": 4}, ["--tp", "0/2"], ["15 elements are not 4 parts of one size"]),
    ("llama", {Q: [16, 4]}, {"other": 1}, ["--tp", "0/2"], ["the number of its heads is unknown", "file of rules"]),
    ("llama", {"model.layers.0.self_attn.k_proj.weight": [24, 4]}, {"num_attention_heads": 12, "num_key_value_heads": 6}, ["--tp", "1/4"],
     ["4 ranks cannot share its 6 kv_heads"]),
    ("llama", {DOWN: [4, 9]}, None, ["--tp", "1/2"], [f"dimension 1 of tensor '{DOWN}'", "2 ranks cannot share 9 elements"]),
    ("llama", {DOWN: [4]}, None, ["--tp", "1/2"], [f"dimension 1 of tensor '{DOWN}'", "it has no such dimension"]),
    ("llama", {UP: [4, 4], "model.new.weight": [4]}, None, ["--tp", "1/2"], ["no rule of 'llama' is about tensor 'model.new.weight'", "--exclude"]),
    ("llama", {"model.layers.0.mlp.up_proj.qweight": [4, 4]}, None, ["--tp", "1/2"], ["up_proj.qweight'", "a quantised model"]),
    ("llama", {UP: [4, 4], "model.layers.0.mlp.up_proj.weight_scale": [4]}, None, ["--tp", "1/2"], ["up_proj.weight_scale'", "a quantised model"]),
    ("falcon", {UP: [4, 4]}, None, ["--tp", "1/2"], ["type 'falcon' of config.json", "--tp-rules", "qwen3_moe"]),
    (None, {UP: [4, 4]}, None, ["--tp", "1/2"], ["no config.json beside", "has the type", "--tp-rules"]),
    ("llama", {UP: [4, 4]}, None, ["--tp", "1/2", "--tp-rules", "lama"], ["'lama' is no file", "ready ones: deepseek_v2, gemma"]),
    ("llama", {UP: [4, 4]}, None, ["--tp", "2/2"], ["no rank 2 of 2"]),
    ("llama", {UP: [4, 4]}, None, ["--tp", "7/4"], ["4096 at most"]),
])
def test_refusals_name_the_tensor_and_the_way_out(daemon, tmp_path, numpy, model_type, tensors, config, options, words):
    write_checkpoint(tmp_path / "m", numpy, model_type, {name: (shape, "same") for name, shape in tensors.items()}, config)
    refused = daemon.ctl("load", "m", str(tmp_path / "m"), *options, check=False)
    assert refused.returncode == 1 and all(word in refused.stderr for word in words), refused.stderr
    assert daemon.ctl("show", "m", check=False).returncode == 1


@pytest.mark.parametrize("text, words", [
    ("a whole\n*.b 0 halves\n", ":2: 'halves' is none of even, ragged, heads and kv_heads"),
    ("\n#\n*.b rows", ":3: behind the pattern '*.b' must be 'whole', or a dimension of 0 to 31"),
    ("a 32", ":1: behind the pattern 'a'"), ("a", ":1: behind the pattern 'a'"), ("a whole 1", ":1: behind the pattern 'a'"),
    ("a 0 ragged even", ":1: 'ragged' must be the only part"), ("a 0 even heads", ":1: 'even' stands beside heads"),
    ("a 0 even even even even even", ":1: a dimension has 4 parts at most"),
    ("heads = 0", ":1: 'heads' must be a number"), ("heads = 4\nheads = 4", ":2: 'heads' is set twice"),
    ("use = falcon", ":1: no rules are ready for 'falcon'"), ("use = llama\nuse = gpt2", ":2: 'use' is set twice"),
    ("width = 3", ":1: no setting 'width'"), ("# nothing\n", ": the text has no rule"), ("a whole\0", ": the text has a byte 0"),
])
def test_an_error_in_a_file_of_rules_has_the_line(daemon, tmp_path, numpy, text, words):
    write_checkpoint(tmp_path / "m", numpy, "llama", {UP: ([4, 4], "rows")})
    (tmp_path / "rules").write_text(text)
    refused = daemon.ctl("load", "m", str(tmp_path / "m"), "--tp", "0/2", "--tp-rules", str(tmp_path / "rules"), check=False)
    assert refused.returncode == 1 and f"{tmp_path}/rules{words}" in refused.stderr, refused.stderr


def test_words_of_the_command_line(daemon, tmp_path):
    for options, words in ((["--tp", "1"], "--tp wants RANK/WORLD"), (["--tp", "1/x"], "--tp"), (["--tp", "1/0"], "--tp"), (["--tp", "0/4097"], "from 1 to 4096"), (["--tp", "/2"], "a rank"),
                           (["--tp", "0,1/2", "--dry-run"], "take one rank"),
                           (["--tp-rules", "llama"], "--tp-rules needs --tp")):
        wrong = daemon.ctl("load", "m", str(tmp_path), *options, check=False)
        assert wrong.returncode == 2 and words in wrong.stderr, wrong.stderr

"""Quantised checkpoints pass through: bytes, names, types, shapes, order, metadata, and the configuration beside them."""
import hashlib
import json
import random
import subprocess

import pytest
from lib import features, safetensors_file

from integration.load.test_load import check_bytes, write_index

LAYER, EXPERTS = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.experts"
BITS = {"F64": 64, "I64": 64, "U64": 64, "C64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
        "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4}  # all others 8
PLAIN = {"model.embed_tokens.weight": ("BF16", [10, 64]), "model.norm.weight": ("BF16", [64])}


def linear(name=LAYER, **parts):
    return {f"{name}.{part}": row for part, row in parts.items()}


# (quantization_config, tensors beside the plain ones, the tensor that --dtype refuses), as the tools write them.
FORMATS = {
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True, "sym": True},
             linear(qweight=("I32", [8, 64]), qzeros=("I32", [2, 8]), scales=("F16", [2, 64]), g_idx=("I32", [64]), bias=("F16", [64])),
             f"{LAYER}.qweight"),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True},
            linear(qweight=("I32", [64, 8]), qzeros=("I32", [2, 8]), scales=("F16", [2, 64])), f"{LAYER}.qweight"),
    "fp8-block": ({"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic", "fmt": "e4m3"},
                  linear(weight=("F8_E4M3", [64, 64]), weight_scale_inv=("F32", [1, 1])), f"{LAYER}.weight"),
    "fp8-static": ({"quant_method": "fp8", "activation_scheme": "static"},
                   linear(weight=("F8_E4M3", [64, 64]), weight_scale=("F32", []), input_scale=("F32", [])), f"{LAYER}.weight"),
    "mxfp4": ({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]},
              {f"{EXPERTS}.gate_up_proj_blocks": ("U8", [2, 64, 2, 16]), f"{EXPERTS}.gate_up_proj_scales": ("U8", [2, 64, 2]),
               f"{EXPERTS}.gate_up_proj_bias": ("BF16", [2, 64]), "model.layers.0.self_attn.sinks": ("BF16", [4])},
              f"{EXPERTS}.gate_up_proj_blocks"),
    "nvfp4": ({"quant_method": "modelopt", "quant_algo": "NVFP4"},
              linear(weight=("U8", [64, 32]), weight_scale=("F8_E4M3", [64, 4]), weight_scale_2=("F32", []), input_scale=("F32", []))
              | {"model.layers.0.self_attn.k_proj.k_scale": ("F32", [])}, f"{LAYER}.weight"),
    "compressed-pack": ({"quant_method": "compressed-tensors", "format": "pack-quantized"},
                        linear(weight_packed=("I32", [64, 8]), weight_scale=("BF16", [64, 2]), weight_shape=("I64", [2]),
                               weight_zero_point=("I32", [8, 2]), weight_g_idx=("I32", [64])), f"{LAYER}.weight_packed"),
    "compressed-int8": ({"quant_method": "compressed-tensors", "format": "int-quantized"},
                        linear(weight=("I8", [64, 64]), weight_scale=("BF16", [64, 1])), f"{LAYER}.weight"),
    "compressed-nvfp4": ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"},
                         linear(weight_packed=("U8", [64, 32]), weight_scale=("F8_E4M3", [64, 4]), weight_global_scale=("F32", [1]),
                                input_global_scale=("F32", [1])), f"{LAYER}.weight_packed"),
    "bitsandbytes": ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
                     linear(**{"weight": ("U8", [2048, 1]), "weight.absmax": ("U8", [64]), "weight.nested_absmax": ("F32", [1]),
                               "weight.quant_map": ("F32", [16]), "weight.quant_state.bitsandbytes__nf4": ("U8", [80])}),
                     f"{LAYER}.weight"),
    "mx-native": ({"quant_method": "quark"},
                  linear(weight=("F4", [64, 64]), weight_scale=("F8_E8M0", [64, 2])), f"{LAYER}.weight"),
    # Odd numbers of elements, of bytes, and of bits in a row.
    "types": ({"quant_method": "all"},
              {f"odd.{dtype}.{i}": (dtype, shape)
               for dtype, shapes in {"F4": ([3, 2], [1, 1, 14], [0]), "BOOL": ([3], []), "C64": ([3], []), "F8_E4M3": ([5],),
                                     "F8_E5M2": ([7],), "F8_E4M3FNUZ": ([3],), "F8_E5M2FNUZ": ([1],), "F8_E8M0": ([11],),
                                     "U8": ([13],), "I8": ([1, 1, 5],), "I16": ([3],), "U16": ([3],), "F16": ([5],), "I32": ([3],),
                                     "U32": ([],), "F32": ([2, 0, 3],), "I64": ([3],), "U64": ([1],), "F64": ([3],)}.items()
               for i, shape in enumerate(shapes)}, "odd.F4.0"),
    # The package has no way to write these.
    "six bits": ({"quant_method": "quark"},
                 {"a": ("F6_E2M3", [4]), "b.weight": ("F6_E3M2", [3, 4]), "c": ("F6_E2M3", [12, 1]), "d": ("U8", [3]),
                  "e": ("F6_E3M2", [0]), "f": ("F4", [2, 1, 7])}, "a"),
}
OF_PACKAGE = {"F64": "float64", "I64": "int64", "U64": "uint64", "C64": "complex64", "F32": "float32", "I32": "int32", "U32": "uint32",
              "F16": "float16", "BF16": "bfloat16", "I16": "int16", "U16": "uint16", "U8": "uint8", "I8": "int8", "BOOL": "bool",
              "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E4M3FNUZ": "float8_e4m3fnuz",
              "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu", "F4": "float4_e2m1fn_x2"}


def of_package(dtype, shape):
    """The package takes the shape of F4 in bytes, as torch has it."""
    return OF_PACKAGE[dtype], [*shape[:-1], shape[-1] // 2] if dtype == "F4" else shape


def package(root, *args, **given):
    probe = subprocess.run([features.TORCH2, "-c", "import safetensors"], stderr=subprocess.PIPE) if features.TORCH2 else None
    features.require("torch2", "no Python with safetensors (make torch2)", probe is not None and not probe.returncode)
    done = subprocess.run([features.TORCH2, root / "tests/integration/load/safetensors_package.py", *args], text=True,
                          stdout=subprocess.PIPE, check=True, **given)
    return done.stdout


def n_bytes(dtype, shape):
    n = BITS.get(dtype, 8)
    for dim in shape:
        n *= dim
    assert n % 8 == 0
    return n // 8


def content(form):
    """{name: (dtype, shape, bytes)}, with the plain tensors of a model."""
    made = {}
    for name, (dtype, shape) in (PLAIN | FORMATS[form][1]).items():
        data = random.Random(form + name).randbytes(n_bytes(dtype, shape))
        made[name] = dtype, shape, bytes(b & 1 for b in data) if dtype == "BOOL" else data
    return made


def metadata(form):
    return {"format": "pt", "quantization_config": json.dumps(FORMATS[form][0]), "note": "\N{GREEK SMALL LETTER BETA}\n\"x\""}


def companions(form):
    return {"config.json": json.dumps({"architectures": ["LlamaForCausalLM"], "quantization_config": FORMATS[form][0]}).encode(),
            "quantize_config.json": b'{"bits": 4}', "hf_quant_config.json": b'{"producer": {"name": "modelopt"}}',
            "generation_config.json": b"{}"}


@pytest.fixture(scope="module")
def checkpoints(root, tmp_path_factory):
    """A folder with a directory of each format, written by the package where it can write the types."""
    folder, data, rows = tmp_path_factory.mktemp("quantised"), b"", {}
    for form in FORMATS:
        (folder / form).mkdir()
        for name, text in companions(form).items():
            (folder / form / name).write_bytes(text)
        path, tensors = folder / form / "model.safetensors", content(form)
        if form == "six bits":
            path.write_bytes(safetensors_file.pack(tensors, metadata(form)))
            continue
        rows[str(path)] = [], metadata(form)
        for name, (dtype, shape, part) in tensors.items():
            rows[str(path)][0].append([name, *of_package(dtype, shape), len(data), len(part)])
            data += part
    (folder / "data").write_bytes(data)
    package(root, "write", folder / "data", input=json.dumps(rows))
    return folder


@pytest.fixture
def loaded(daemon, checkpoints, monkeypatch):
    """weightd and the module, with a buffer of each format."""
    features.require("library")
    monkeypatch.setenv("WEIGHTD_SOCKET", daemon.socket)
    for form in FORMATS:
        daemon.ctl("load", "-q", "--verify", "xxh3", buffer_of(form), checkpoints / form)
    import weightd
    return daemon, weightd


def buffer_of(form):
    return form.replace(" ", "-")


def summary(tensors):
    return {name: [dtype, shape, hashlib.sha256(data).hexdigest()] for name, (dtype, shape, data) in tensors.items()}


def test_the_version_and_what_is_saved_of_it_are_the_checkpoint(loaded, checkpoints, tmp_path):
    """Byte for byte, so with names, types, shapes, order and __metadata__; and the files beside it."""
    daemon, weightd = loaded
    for form in FORMATS:
        raw = (checkpoints / form / "model.safetensors").read_bytes()
        header, tensors = safetensors_file.unpack(raw)
        assert header["__metadata__"] == metadata(form) and summary(tensors) == summary(content(form)), form
        daemon.ctl("save", "-q", buffer_of(form), tmp_path / form)
        with weightd.model_dir(buffer_of(form)) as path:
            for folder in tmp_path / form, path:
                found = {p.name: p.read_bytes() for p in map(type(tmp_path), folder.iterdir())} if folder == tmp_path / form else \
                    {name: (tmp_path / path / name).read_bytes() for name in [*companions(form), "model.safetensors"]}
                assert found == companions(form) | {"model.safetensors": raw}, form
        shown = json.loads(daemon.ctl("show", buffer_of(form), "--json").stdout)
        assert shown["attributes"]["quantization"] == FORMATS[form][0]["quant_method"]


def test_python_has_the_tensors(loaded, checkpoints):
    _, weightd = loaded
    for form in FORMATS:
        _, tensors = safetensors_file.unpack((checkpoints / form / "model.safetensors").read_bytes())
        with weightd.attach(buffer_of(form)) as buffer:
            assert list(buffer) == list(tensors), form
            for name, (dtype, shape, data) in tensors.items():
                t = buffer[name]
                assert (t.dtype, list(t.shape), t.nbytes, bytes(t.memoryview())) == (dtype, shape, len(data), data), (form, name)
            assert dict(buffer.files) == companions(form)


def test_the_package_reads_the_version_by_its_path(loaded, root):
    _, weightd = loaded
    with weightd.model_dir(*map(buffer_of, FORMATS)) as path:
        paths = {form: f"{path}/{buffer_of(form)}/model.safetensors" for form in FORMATS}
        found = json.loads(package(root, "read", input=json.dumps(list(paths.values()))))
    for form in FORMATS:
        assert found[paths[form]] == summary(content(form)), form


def test_shards_and_saves_of_other_forms_keep_the_tensors(daemon, checkpoints, tmp_path):
    """Several files, and a buffer whose version is no file: the layout is weightd's, and what is saved is built of it."""
    for form in FORMATS:
        tensors, folder = content(form), tmp_path / form
        folder.mkdir()
        names = list(tensors)
        parts = {f"model-0000{i + 1}-of-00002.safetensors": names[i::2] for i in range(2)}
        for file, part in parts.items():
            (folder / file).write_bytes(safetensors_file.pack({name: tensors[name] for name in part}, {"format": "pt"}))
        write_index(folder / "model.safetensors.index.json", {name: file for file, part in parts.items() for name in part})
        for source, name, option in (folder, f"shards-{buffer_of(form)}", []), (checkpoints / form, f"flat-{buffer_of(form)}", ["--reusable"]):
            daemon.ctl("load", "-q", name, source, *option)
            daemon.ctl("save", "-q", name, tmp_path / name)
            assert daemon.ctl("diff", name, checkpoints / form, check=False).returncode == 0, (form, name)
            header, saved = safetensors_file.unpack((tmp_path / name / "model.safetensors").read_bytes())
            assert summary(saved) == summary(tensors) and header["__metadata__"]["format"] == "pt", (form, name)


def test_a_part_keeps_groups(daemon, checkpoints):
    """All tensors of a layer, or all but one: weights with their scales and zeros."""
    for form in FORMATS:
        groups = list(FORMATS[form][1])
        tensors = content(form)
        name = buffer_of(form)
        patterns = {"model.layers.0.*"} if groups[0].startswith("model.") else {group[:1] + "*" for group in groups}
        daemon.ctl("load", "-q", name, checkpoints / form / "model.safetensors", *(x for p in patterns for x in ("--include", p)))
        check_bytes(daemon, name, {group: tensors[group] for group in groups}, in_order=False)


def test_a_cast_refuses_quantised_tensors_by_name(daemon, checkpoints):
    for form, (_, tensors, refused) in FORMATS.items():
        done = daemon.ctl("load", "m", checkpoints / form, "--dtype", "f32", check=False)
        named = [name for name in tensors if f"tensor '{name}' is {tensors[name][0]}, " in done.stderr and "cannot convert it" in done.stderr]
        assert done.returncode == 1 and named, (form, done.stderr)
        others = [x for name in tensors if name != refused for x in ("--exclude", name)]
        done = daemon.ctl("load", "m", checkpoints / form, "--dtype", "f32", *others, check=False)
        assert f"tensor '{refused}' is {tensors[refused][0]}, of a quantised model: --dtype cannot convert it" in done.stderr, form
    assert json.loads(daemon.ctl("ls", "--json").stdout)["buffers"] == []

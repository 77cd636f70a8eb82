"""load --dry-run: the plan is what the load does, and it needs no server."""
import json
import os
import random
import struct
import subprocess

import pytest
from lib import features

BITS = {"U8": 8, "BF16": 16, "F32": 32, "F64": 64}
FORMS = {
    "file": ("one", []),
    "packed": ("shards", []),
    "packed-part": ("one", ["--exclude", "*.3.*"]),
    "flat": ("one", ["--exclusive"]),
    "flat-shards": ("shards", ["--reusable"]),
}


def write_file(path, rng, names):
    """Tensors of several types and odd sizes, so that no order and no alignment is the same as another by chance."""
    header, parts, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name in names:
        dtype = rng.choice(list(BITS))
        shape = [rng.choice([0, 1, 3, 7, 64]), rng.choice([1, 5, 128])]
        size = shape[0] * shape[1] * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        parts.append(rng.randbytes(size))
        at += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """One file, and a directory with an index of three."""
    folder, rng = tmp_path_factory.mktemp("models"), random.Random(7)
    write_file(folder / "one.safetensors", rng, [f"layers.{i}.weight" for i in range(40)])
    shards = folder / "shards"
    shards.mkdir()
    weight_map = {f"layers.{i}.weight": f"model-{i % 3}.safetensors" for i in range(40)}
    for file in sorted(set(weight_map.values())):
        write_file(shards / file, rng, [name for name in weight_map if weight_map[name] == file])
    (shards / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return {"one": folder / "one.safetensors", "shards": shards}


def ctl(*args, check=True):
    """weightctl where no server is, and none can be found."""
    env = os.environ | {"WEIGHTD_SOCKET": "/nonexistent/weightd.sock", "COLUMNS": "80"}
    return subprocess.run([features.BUILD / "weightctl", *args], env=env, capture_output=True, text=True, check=check)


def plan_of(model, options):
    return json.loads(ctl("load", "--dry-run", "--json", "m", model, *options).stdout)


def read_by(plan, files):
    """The memory as the ranges of the plan fill it."""
    memory, end = bytearray(plan["memory"]), 0
    for r in plan["ranges"]:
        assert r["dest"] >= end and r["size"] > 0, f"{r} lies before {end}"
        end = r["dest"] + r["size"]
        with open(files[r["file"]]["path"], "rb") as f:
            f.seek(r["offset"])
            memory[r["dest"]:end] = f.read(r["size"])
    assert end <= len(memory)
    return bytes(memory)


@pytest.mark.parametrize("form", FORMS)
def test_the_plan_is_what_the_load_does(daemon, models, form):
    model, options = models[FORMS[form][0]], FORMS[form][1]
    plan = plan_of(model, options)
    loaded = json.loads(daemon.ctl("load", "--json", "m", model, *options).stdout)
    assert plan["layout"] == form.partition("-")[0]
    assert plan["tensors"] == json.loads(daemon.ctl("tensors", "--json", "m").stdout)["tensors"]
    assert (len(plan["tensors"]), plan["read"]) == (loaded["tensors"], loaded["size"])
    assert len(plan["files"]) == loaded["files"]
    assert sum(f["size"] for f in plan["files"]) == sum(r["size"] for r in plan["ranges"]) == plan["read"]
    for i, file in enumerate(plan["files"]):
        assert file["ranges"] == sum(r["file"] == i for r in plan["ranges"])
    memory = read_by(plan, plan["files"])
    for t in plan["tensors"]:
        data = daemon.ctl("cat", "m", t["name"], text=False).stdout
        assert memory[t["offset"]:t["offset"] + t["size"]] == data, t


def test_one_file_is_one_range(models):
    plan = plan_of(models["one"], [])
    size = int.from_bytes(models["one"].read_bytes()[:8], "little") + 8
    assert plan["ranges"] == [{"file": 0, "offset": size, "dest": 0, "size": models["one"].stat().st_size - size}]


def test_a_plan_prints_in_80_columns(models):
    os.chdir(models["one"].parent)
    lines = ctl("load", "--dry-run", "m", "shards").stdout.splitlines()
    assert lines[0] == "m on host"
    assert lines[1].startswith("40 tensors, ") and lines[1].endswith(" of 3 files")
    assert lines[4].split() == ["FILE", "SIZE", "RANGES", "PATH"]
    assert [line.split()[-1] for line in lines[5:8]] == [f"shards/model-{i}.safetensors" for i in range(3)]
    assert lines[9].split() == ["FILE", "OFFSET", "DEST", "SIZE"]
    assert max(map(len, lines)) <= 80


def test_a_plan_fails_as_the_load_does(daemon, models, tmp_path):
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(models["one"].read_bytes()[:-1])
    dry, wet = ctl("load", "--dry-run", "m", broken, check=False), daemon.ctl("load", "m", broken, check=False)
    assert (dry.returncode, dry.stdout) == (1, "")
    assert "it is cut off" in dry.stderr and dry.stderr == wet.stderr


def test_a_dry_run_asks_no_server(models):
    done = ctl("load", "--dry-run", "--if-needed", "m", models["one"], check=False)
    assert done.returncode == 2 and "--dry-run asks none" in done.stderr

"""Plan: the processor time that names cost, at 222,747 tensors, as a quantised model of experts has.

plan        weightd_safetensors_open() ("parse") and weightd_load_plan_new(): from a path to ranges and places
json        Python's json.loads() of the same header, beside it: a reader that keeps everything
tensors     weightctl tensors, as a table and as JSON
python      keys() of an attached buffer, and a look-up of each name

All figures are processor time, so that the reading of a cold file and other programs are not in them; each is the least of
the rounds, as a neighbour on the same core makes all slower.
"""
import contextlib
import json
import os
import pathlib
import resource
import struct
import subprocess
import sys
import tempfile
import time

from lib import features
from lib.daemon import Daemon

import machine
import programs

N_TENSORS = 222_747
ROUNDS = 7
NAME = "bench/plan"
PARTS = [f"{projection}_proj.{part}" for projection in ("gate", "up", "down") for part in ("qweight", "qzeros", "scales")]
TARGETS = {"plan_ms": 150, "table_s": 0.5, "json_s": 0.5, "keys_s": 0.5, "lookups_s": 0.5}


def measure(report):
    with tempfile.TemporaryDirectory(prefix="weightd-bench-") as folder:
        path = pathlib.Path(folder, "model.safetensors")
        text = write_model(path)
        figures, others = {}, machine.Others()
        with others:
            figures |= measure_plan(report, path, text)
            with contextlib.closing(Daemon("--log-level", "warning")) as d:
                d.ctl("load", "--quiet", NAME, path)
                figures |= measure_tensors(report, d) | measure_names(report, d)
    for figure, at_most in TARGETS.items():
        report.bound("plan", figure, figures[figure], at_most=at_most)
    report.line(name="others", other_cpu=others.share)


def write_model(path):
    """Four bytes a tensor. Returns the text of the header."""
    header = {}
    for i in range(N_TENSORS):
        expert, part = divmod(i, len(PARTS))
        name = f"model.layers.{expert // 128}.mlp.experts.{expert % 128}.{PARTS[part]}"
        header[name] = {"dtype": "I32", "shape": [1, 1], "data_offsets": [4 * i, 4 * i + 4]}
    text = json.dumps(header, separators=(",", ":")).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(4 * N_TENSORS))
    return text


def measure_plan(report, path, text):
    rounds = programs.bench("plan", path, ROUNDS)
    parse_ms, plan_ms = (min(ns) / 1e6 for ns in zip(*rounds))
    report.line(name="plan", tensors=N_TENSORS, header_bytes=len(text), parse_ms=parse_ms, plan_ms=plan_ms, rounds=len(rounds))
    json_ms = min(cpu_ns(lambda: json.loads(text)) for _ in range(3)) / 1e6
    report.line(name="json", tensors=N_TENSORS, header_bytes=len(text), parse_ms=json_ms, of_plan=json_ms / plan_ms)
    return {"plan_ms": plan_ms}


def cpu_ns(work):
    start = time.process_time_ns()
    work()
    return time.process_time_ns() - start


def measure_tensors(report, d):
    found = {figure: min(child_s(d, *options) for _ in range(ROUNDS))
             for figure, options in (("table_s", ()), ("json_s", ("--json",)))}
    report.line(name="tensors", tensors=N_TENSORS, **found, rounds=ROUNDS)
    return found


def child_s(d, *options):
    """Processor seconds of one weightctl tensors, connection and exit included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with open(os.devnull, "wb") as sink:
        subprocess.run([features.BUILD / "weightctl", "tensors", NAME, *options], env=d.env, stdout=sink, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure_names(report, d):
    env = d.env | {"PYTHONPATH": str(features.ROOT / "libclient/python")}
    rounds = programs.run([sys.executable, programs.PEERS / "names.py", NAME, ROUNDS], env=env)
    keys_s, lookups_s = (min(ns) / 1e9 for ns in zip(*rounds))
    report.line(name="python", tensors=N_TENSORS, keys_s=keys_s, lookups_s=lookups_s, rounds=len(rounds))
    return {"keys_s": keys_s, "lookups_s": lookups_s}

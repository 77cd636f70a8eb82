"""
Programs of PyPI that use no weightd, on versions of weightd: what they compute, and what of the memory they share. Small
models; tests/programs/run has larger ones, fresh processes and a clock.
"""
import json
import sys

import pytest
from lib import features
from lib.features import ROOT

sys.path.append(str(ROOT / "tests/programs"))

import control
import process
import rows
from served import Version, environment_of, exec_command

pytestmark = [pytest.mark.plain, pytest.mark.timeout(1200)]
MODELS = ("llama", "bert", "ddpm")
FORKED = [row for row in rows.ROWS if row.model in MODELS]
SPAWNING = FORKED[0]


@pytest.fixture(scope="module")
def python():
    features.require("programs")
    return features.PROGRAMS


@pytest.fixture(scope="module")
def zygote(python):
    """A process that has imported all programs, and forks those that run them."""
    command = process.script(python, "forked", *sorted({row.program for row in FORKED}))
    with process.Process(command, {"PYTHONPATH": str(ROOT / "libclient/python")}) as zygote:
        yield zygote


@pytest.fixture(scope="module")
def folders(zygote, tmp_path_factory):
    """Models by name."""
    top = tmp_path_factory.mktemp("models")
    zygote.send(json.dumps({"make": {kind: str(top / kind) for kind in MODELS}}))
    assert zygote.report() == 0
    return {kind: top / kind for kind in MODELS}


def test_programs_share_a_version_and_compute_the_same(daemon, zygote, folders):
    """Each by two processes, which load after the fork from the folder that `weightctl exec` gives to another program."""
    for name, folder in folders.items():
        daemon.ctl("load", name, folder)
    environment = environment_of(daemon, "llama")
    faults, n_processes = {}, {}
    with process.Process(exec_command(MODELS, ["sh", "-c", f"echo '{process.MARK}\"{{}}\"'; cat"]), environment) as executed:
        top = executed.report()
        for row in FORKED:
            figures = rows.run_forked(row, zygote, folders[row.model], f"{top}/{row.model}", environment, row is SPAWNING)
            print(row.name, figures)
            faults[row.name], n_processes[row.name] = figures.faults(row), figures.n_processes
    assert not any(faults.values()), faults
    assert n_processes == {row.name: 3 if row is SPAWNING else 2 for row in FORKED}


@pytest.mark.parametrize("row", [row for row in rows.ROWS if row.model == "gguf"], ids=lambda row: row.program)
def test_llama_cpp_shares_a_gguf_file(daemon, python, tmp_path, row):
    """In fresh processes, of which the first spawns another."""
    features.require("llama", f"no {row.package} there (make fetch-llama)", process.version_of(python, row.package) is not None)
    process.make_models(python, {"gguf": tmp_path / "gguf"}, "small")
    figures = rows.run_fresh(row, python, tmp_path / "gguf", Version(daemon, "gguf", tmp_path / "gguf"))
    print(row.name, figures)
    assert figures.faults(row) == [] and figures.n_processes == 3


def test_a_regular_file_changes_under_its_reader_and_a_version_does_not(daemon, python, folders, tmp_path):
    version = Version(daemon, "llama", folders["llama"])
    assert control.run(python, folders["llama"], version, tmp_path / "copy.safetensors") == control.EXPECTED

"""Launchers of ranks: what they do when a rank dies, and that all ranks finish the step from the same state."""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess

import pytest
from lib import features
from lib.torch_ranks import PATIENCE_S

pytestmark = [pytest.mark.timeout(900), pytest.mark.plain]

STEPS = 12
PROGRAM = pathlib.Path(__file__).with_name("torch_program.py")


@pytest.fixture
def launch(daemon, tmp_path):
    """launch(command, dies, **arguments): runs the program under a launcher; its exit status and its output."""
    (tmp_path / "results").mkdir()

    def run(command, dies, **arguments):
        given = {"steps": STEPS, "dies": dies, "marker": str(tmp_path / "died"), "results": str(tmp_path / "results")}
        given |= arguments
        env = daemon.env | {"OMP_NUM_THREADS": "1", "XDG_RUNTIME_DIR": str(daemon.folder), "TMPDIR": str(tmp_path),
                            "PATH": f"{features.BUILD}:{os.environ['PATH']}"}
        process = subprocess.Popen([*command, features.TORCH2, PROGRAM, json.dumps(given)], env=env, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            output, _ = process.communicate(timeout=PATIENCE_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        return process.returncode, output

    return run


def assert_same_end(host, daemon, tmp_path, first):
    """All ranks ended as without a death, and began their last life at that step or behind it."""
    expected = host.play(daemon, "run", 2, steps=STEPS, job="whole")
    for rank, want in enumerate(expected):
        found = json.loads((tmp_path / "results" / str(rank)).read_text())
        for key in ("bits", "at", "lr"):
            assert found[key] == want[key], (rank, key)
        assert found["first"] in first and found["losses"] == want["losses"][found["first"]:]
    assert json.loads(daemon.ctl("ls", "--json").stdout)["jobs"] == []
    assert list(daemon.folder.glob("weightd-train/*")) == []


def test_torchrun_restarts_all_ranks_which_finish_the_step(host, daemon, launch, tmp_path):
    torchrun = [features.TORCH2, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
                "--max-restarts=2", "--no-python"]
    status, output = launch(torchrun, [1, 5, "step"])
    assert status == 0 and (tmp_path / "died").exists() and output.count("restart 1") == 2, output
    assert_same_end(host, daemon, tmp_path, (5, 6, 7))


def test_mpirun_ends_all_ranks_and_the_next_one_finishes_the_step(host, daemon, launch, tmp_path, require):
    require("mpirun", "no mpirun (apt-get install openmpi-bin)", bool(shutil.which("mpirun")))
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"]
    status, output = launch(mpirun, [1, 5, "backward"], job="mpi")
    assert status != 0 and not list((tmp_path / "results").iterdir()), output
    (job,) = json.loads(daemon.ctl("ls", "--json").stdout)["jobs"]
    assert job["name"] == "mpi"
    status, output = launch(mpirun, [1, 5, "backward"], job="mpi")
    assert status == 0, output
    assert_same_end(host, daemon, tmp_path, (5, 6, 7))


def test_weightctl_restarts_the_dead_rank_alone(host, daemon, launch, tmp_path):
    status, output = launch(["weightctl", "train", "run", "-n", "2", "--restart", "2", "--"], [1, 5, "backward"])
    assert status == 0 and (tmp_path / "died").exists(), output
    assert json.loads((tmp_path / "results/0").read_text())["first"] == 0
    assert_same_end(host, daemon, tmp_path, (0, 5))

"""Launchers of ranks: what they do when a rank dies, and that all ranks finish the step from the same state."""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess

import pytest
from integration.examples.pages import literals
from lib import features
from lib.nodes import claim_port
from lib.torch_ranks import PATIENCE_S

pytestmark = [pytest.mark.timeout(900), pytest.mark.plain]

STEPS = 12
PROGRAM = pathlib.Path(__file__).with_name("torch_program.py")


@pytest.fixture
def launch(daemon, tmp_path):
    """
    launch(command, dies, **arguments): runs the program under a launcher, or under several, of a list of commands; the
    exit status, the highest of all, and the output.
    """
    (tmp_path / "results").mkdir()
    processes = []

    def run(commands, dies, **arguments):
        given = {"steps": STEPS, "dies": dies, "marker": str(tmp_path / "died"), "results": str(tmp_path / "results")}
        given |= arguments
        env = daemon.env | {"OMP_NUM_THREADS": "1", "XDG_RUNTIME_DIR": str(daemon.folder), "TMPDIR": str(tmp_path),
                            "PATH": f"{features.BUILD}:{os.environ['PATH']}"}
        started = [subprocess.Popen([*command, features.TORCH2, PROGRAM, json.dumps(given)], env=env, text=True,
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
                   for command in (commands if isinstance(commands[0], list) else [commands])]
        processes.extend(started)
        outputs = [process.communicate(timeout=PATIENCE_S)[0] for process in started]
        return max(abs(process.returncode) for process in started), "".join(outputs)

    yield run
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def assert_same_end(host, daemon, tmp_path, first, nodes=1):
    """All ranks ended as without a death, and began their last life at that step or behind it."""
    expected = host.play(daemon, "run", 2, nodes, steps=STEPS, job="whole")
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


def printed_torchrun(node, port):
    """The command of weightd-python(3) for a machine of two, without its program: here with one rank on each."""
    command = literals("weightd-python.3", "TRAINING ON SEVERAL MACHINES")[0].replace("\\\n", " ").splitlines()[1].split()
    assert (command[0], command[-1]) == ("torchrun", "train.py")
    here = {"--node-rank": str(node), "--nproc-per-node": "1", "--master-addr": "127.0.0.1", "--master-port": str(port)}
    given = dict(zip(command[1:-1:2], command[2:-1:2]))
    assert here.keys() < given.keys()
    return [features.TORCH2, "-m", "torch.distributed.run", *(word for option in (given | here).items() for word in option)]


def test_torchrun_on_two_nodes_restarts_the_rank_of_one_for_which_the_other_waits(host, daemon, launch, tmp_path):
    port, claim = claim_port()  # torchrun listens at all addresses, also at those where others meet
    with claim:
        agents = [printed_torchrun(node, port) + ["--max-restarts=2", "--no-python"] for node in (0, 1)]
        status, output = launch(agents, [1, 5, "backward"])
    assert status == 0 and (tmp_path / "died").exists() and output.count("restart 1") == 1, output
    assert json.loads((tmp_path / "results/0").read_text())["first"] == 0
    assert_same_end(host, daemon, tmp_path, (0, 5), nodes=2)


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


WITHOUT_PROC = """
import ctypes, types
from weightd.train import _job
libc = ctypes.CDLL(None, use_errno=True)
assert libc.mount(b"none", b"/proc", b"tmpfs", 0, None) == 0, ctypes.get_errno()
try:
    print(_job.find_job(types.SimpleNamespace(size=2, local_size=2, n_nodes=1, node=0), None).token.split(":")[0])
except Exception as e:
    print(type(e).__name__, e)
"""


def test_a_launcher_cannot_be_found_without_proc_and_the_file_of_the_job_is_the_way_out(daemon, tmp_path, require):
    require("root")
    require("torch2")

    def find(**more):
        env = daemon.env | {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "XDG_RUNTIME_DIR": str(tmp_path),
                            "PYTHONPATH": str(features.ROOT / "libclient/python")} | more
        done = subprocess.run(["unshare", "--mount", features.TORCH2, "-c", WITHOUT_PROC], env=env, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=PATIENCE_S)
        return done.stdout or done.stderr

    assert "Error the launcher of this process cannot be found, as /proc cannot be read" in (said := find()), said
    assert "mount /proc (mount -t proc proc /proc), or set WEIGHTD_JOB_FILE" in said
    assert find(WEIGHTD_JOB_FILE=str(tmp_path / "job")).startswith("train-")

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
STANDALONE = ["--standalone", "--nproc-per-node=2", "--max-restarts=2"]
PROGRAM = pathlib.Path(__file__).with_name("torch_program.py")


def given(tmp_path, dies, **arguments):
    """Those of a rank."""
    return {"steps": STEPS, "dies": dies, "marker": str(tmp_path / "died"), "results": str(tmp_path / "results"), **arguments}


@pytest.fixture
def launch(daemon, tmp_path):
    """
    launch(command, dies, **arguments): runs the program under a launcher; the exit status, and the output.
    """
    (tmp_path / "results").mkdir()
    processes = []

    def run(command, dies, **arguments):
        env = daemon.env | {"OMP_NUM_THREADS": "1", "XDG_RUNTIME_DIR": str(daemon.folder), "TMPDIR": str(tmp_path),
                            "PATH": f"{features.BUILD}:{os.environ['PATH']}"}
        processes.append(subprocess.Popen([*command, features.TORCH2, PROGRAM, json.dumps(given(tmp_path, dies, **arguments))], env=env, text=True,
                                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True))
        output = processes[-1].communicate(timeout=PATIENCE_S)[0]
        return processes[-1].returncode, output

    yield run
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def fork_agents(host, daemon, tmp_path):
    """fork_agents(arguments of each torchrun, dies): the output, after all of them ended well."""
    (tmp_path / "results").mkdir()
    by_hand = dict.fromkeys(("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"))
    agents = []

    def run(all_words, dies):
        agents.extend(host.start(daemon, "launched.by_torchrun", 0, 1, env=by_hand | {"TMPDIR": str(tmp_path)}, words=words,
                                 given=given(tmp_path, dies))
                      for words in all_words)
        for agent in agents:
            agent.value()
        return "".join(agent.log for agent in agents)

    yield run
    for agent in agents:
        agent.end()


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


def torchrun_restarts(tmp_path, output, n):
    """It started that many ranks again, after one died."""
    return (tmp_path / "died").exists() and output.count("restart 1") == n


@pytest.mark.long
def test_torchrun_starts_programs_again_which_finish_the_step(host, daemon, launch, tmp_path):
    status, output = launch([features.TORCH2, "-m", "torch.distributed.run", *STANDALONE, "--no-python"], [1, 5, "step"])
    assert status == 0 and torchrun_restarts(tmp_path, output, 2), output
    assert_same_end(host, daemon, tmp_path, (5, 6, 7))


def test_torchrun_restarts_all_ranks_which_finish_the_step(host, daemon, fork_agents, tmp_path):
    output = fork_agents([[*STANDALONE, "train.py"]], [1, 5, "step"])
    assert torchrun_restarts(tmp_path, output, 2), output
    assert_same_end(host, daemon, tmp_path, (5, 6, 7))


def printed_torchrun(node, port):
    """Arguments of torchrun, of weightd-python(3), for a machine of two: here with one rank on each."""
    command = literals("weightd-python.3", "TRAINING ON SEVERAL MACHINES")[0].replace("\\\n", " ").splitlines()[1].split()
    assert (command[0], command[-1]) == ("torchrun", "train.py")
    here = {"--node-rank": str(node), "--nproc-per-node": "1", "--master-addr": "127.0.0.1", "--master-port": str(port)}
    given = dict(zip(command[1:-1:2], command[2:-1:2]))
    assert here.keys() < given.keys()
    return [word for option in (given | here).items() for word in option] + ["--max-restarts=2", command[-1]]


def test_torchrun_on_two_nodes_restarts_the_rank_of_one_for_which_the_other_waits(host, daemon, fork_agents, tmp_path):
    port, claim = claim_port()  # torchrun listens at all addresses, also at those where others meet
    with claim:
        output = fork_agents([printed_torchrun(node, port) for node in (0, 1)], [1, 5, "backward"])
    assert torchrun_restarts(tmp_path, output, 1), output
    assert json.loads((tmp_path / "results/0").read_text())["first"] == 0
    assert_same_end(host, daemon, tmp_path, (0, 5), nodes=2)


def test_mpirun_ends_all_ranks_and_the_next_start_finishes_the_step(host, daemon, launch, tmp_path, require):
    require("mpirun", "no mpirun (apt-get install openmpi-bin)", bool(shutil.which("mpirun")))
    status, output = launch(["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"], [1, 5, "backward"], job="mpi")
    assert status != 0 and not list((tmp_path / "results").iterdir()), output
    (job,) = json.loads(daemon.ctl("ls", "--json").stdout)["jobs"]
    assert job["name"] == "mpi"
    host.play(daemon, "launched.rank_of", 2, given=given(tmp_path, [1, 5, "backward"], job="mpi"))
    assert_same_end(host, daemon, tmp_path, (5, 6, 7))


@pytest.mark.long  # test_train_run has it with a program that starts sooner
def test_weightctl_restarts_the_dead_rank_alone(host, daemon, launch, tmp_path):
    status, output = launch(["weightctl", "train", "run", "-n", "2", "--restart", "2", "--"], [1, 5, "backward"])
    assert status == 0 and (tmp_path / "died").exists(), output
    assert json.loads((tmp_path / "results/0").read_text())["first"] == 0
    assert_same_end(host, daemon, tmp_path, (0, 5))


def test_a_launcher_cannot_be_found_without_proc_and_the_file_of_the_job_is_the_way_out(host, daemon, tmp_path, require):
    require("root")
    ((said, found),) = host.play(daemon, "launched.without_proc", file=str(tmp_path / "job"))
    assert "the launcher of this process cannot be found, as /proc cannot be read" in said, said
    assert "mount /proc (mount -t proc proc /proc), or set WEIGHTD_JOB_FILE" in said
    assert found.startswith("train-")

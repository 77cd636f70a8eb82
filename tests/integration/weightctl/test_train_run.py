"""weightctl train run: ranks that are started, restarted and ended, whatever happens to them or to weightctl."""
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import textwrap

import pytest
from lib import features
from lib.native import Client
from lib.nodes import claim_port
from lib.wire import until

# Joins as the rank that the environment names; a line in a file of its own tells who it is.
JOIN = """
    import json, os, signal, sys
    from lib.native import Client
    client = Client(os.environ["WEIGHTD_SOCKET"])
    rank, life = int(os.environ["LOCAL_RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    job = client.join(os.environ["WEIGHTD_JOB"], rank)
    def tell(what):
        with open(f"{sys.argv[1]}/{rank}.{life}.{what}.new", "w") as f:
            f.write(str(os.getpid()))
        os.rename(f.name, f.name[:-4])
    tell("joined")
"""
LEAVE = JOIN + """
    job.leave()
"""
STAY = JOIN + """
    while True:
        signal.pause()
"""


def python(code, *args):
    return sys.executable, "-c", textwrap.dedent(code), *map(str, args)


@pytest.fixture
def scene(daemon, monkeypatch):
    """A weightd whose jobs have all ended at the end of the test."""
    daemon.env["PYTHONPATH"] = str(features.ROOT / "tests")
    with Client(daemon.socket) as client:
        daemon.jobs = client.jobs
        yield daemon
        for program in daemon.started:
            program.kill()


@pytest.fixture
def notes(tmp_path):
    """The folder in which ranks leave notes."""
    folder = tmp_path / "notes"
    folder.mkdir()
    yield Notes(folder)
    for pid in Notes(folder).pids():
        if pid > 0 and pathlib.Path(f"/proc/{pid}").exists() and str(folder) in pathlib.Path(f"/proc/{pid}/cmdline").read_text():
            os.kill(pid, signal.SIGKILL)


class Notes:
    def __init__(self, folder):
        self.folder = folder

    def __str__(self):
        return str(self.folder)

    def pids(self):
        return [int(f.read_text()) for f in self.folder.glob("*.joined")]

    def pid(self, rank, life=0, what="joined"):
        """Waits for the note, and returns the process that left it."""
        path = self.folder / f"{rank}.{life}.{what}"
        until(path.exists, f"rank {rank} left the note {path.name}")
        return int(path.read_text())


def run(scene, *args, check=True, **kw):
    return scene.ctl("train", "run", *args, check=check, **kw)


def spawn(scene, *args, **kw):
    return scene.spawn("train", "run", *args, text=True, **kw)


def ended(program, status):
    out, err = program.communicate(timeout=60)
    assert program.returncode == status, (out, err)
    return err


# --- The environment ------------------------------------------------------------------------------


def test_each_rank_has_the_variables_of_torchrun(scene, tmp_path):
    code = "import json, os, sys; json.dump(dict(os.environ), open(f'{sys.argv[1]}/{os.environ[\"RANK\"]}', 'w'))"
    done = run(scene, "-n", 3, "--restart", 5, "--job", "train", "--", *python(code, tmp_path), env={"OMP_NUM_THREADS": "7"})
    assert (done.stdout, done.stderr) == ("", "")
    environments = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(3)]
    for rank, e in enumerate(environments):
        assert (e["RANK"], e["LOCAL_RANK"], e["ROLE_RANK"]) == (str(rank),) * 3
        assert (e["WORLD_SIZE"], e["LOCAL_WORLD_SIZE"], e["ROLE_WORLD_SIZE"], e["GROUP_WORLD_SIZE"]) == ("3", "3", "3", "1")
        assert (e["GROUP_RANK"], e["ROLE_NAME"], e["MASTER_ADDR"]) == ("0", "default", "127.0.0.1")
        assert (e["TORCHELASTIC_RESTART_COUNT"], e["TORCHELASTIC_MAX_RESTARTS"]) == ("0", "5")
        assert (e["TORCHELASTIC_RUN_ID"], e["TORCHELASTIC_USE_AGENT_STORE"]) == ("train", "False")
        assert e["OMP_NUM_THREADS"] == "7" and e["WEIGHTD_SOCKET"] == scene.socket
        assert e["WEIGHTD_JOB"].startswith("train:") and e["WEIGHTD_JOB"] == environments[0]["WEIGHTD_JOB"]
        assert e["MASTER_PORT"] == environments[0]["MASTER_PORT"]
    with socket.socket() as s:
        s.bind(("127.0.0.1", int(environments[0]["MASTER_PORT"])))
    assert scene.jobs() == {}


@pytest.mark.parametrize("n, threads", [(1, None), (2, "1")])
def test_several_ranks_have_one_thread_each_unless_the_caller_says_otherwise(scene, n, threads):
    scene.env.pop("OMP_NUM_THREADS", None)
    run(scene, "-n", n, "--", *python(f"import os; assert os.environ.get('OMP_NUM_THREADS') == {threads!r}"))


def test_the_variables_are_those_of_torchrun_itself(require, scene, tmp_path):
    """But for those that its agent sets for itself: of its log, its errors and its signals."""
    require("torch2")
    code = "import json, os, sys; json.dump(dict(os.environ), open(f'{sys.argv[1]}/{os.environ[\"RANK\"]}', 'w'))"
    program = tmp_path / "program.py"
    program.write_text(code)
    folders = [tmp_path / "torch", tmp_path / "ours"]
    for folder in folders:
        folder.mkdir()
    subprocess.run([features.TORCH2, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", program, folders[0]],
                   env=scene.env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=300)
    run(scene, "-n", 2, "--", sys.executable, program, folders[1])
    for rank in "01":
        theirs, ours = (json.loads((folder / rank).read_text()) for folder in folders)
        added = {name for name in theirs if name not in scene.env}
        agents = "LC_CTYPE", "TORCHELASTIC_ERROR", "TORCHELASTIC_LOG", "TORCHELASTIC_SIGNALS"
        assert not [name for name in added - set(ours) if not name.startswith(agents)]
        same = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE",
                "GROUP_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING"]
        assert {name: theirs[name] for name in same} == {name: ours[name] for name in same}


@pytest.mark.parametrize("master, address, port", [("10.77.0.1", "10.77.0.1", 29500), ("node0:7000", "node0", 7000),
                                                   ("fd00::1", "fd00::1", 29500), ("[fe80::1%eth0]:7000", "fe80::1%eth0", 7000)])
def test_each_node_has_its_place_and_a_job_of_its_own(scene, tmp_path, master, address, port):
    """On one machine, with one name."""
    code = "import json, os, sys; json.dump(dict(os.environ), open(f'{sys.argv[1]}/{os.environ[\"RANK\"]}', 'w'))"
    for node in range(3):
        done = run(scene, "-n", 2, "--nodes", 3, "--node", node, "--master", master, "--job", "gpt", "--", *python(code, tmp_path))
        assert (done.stdout, done.stderr) == ("", "")
    for rank in range(6):
        e = json.loads((tmp_path / str(rank)).read_text())
        assert (e["RANK"], e["LOCAL_RANK"], e["GROUP_RANK"], e["ROLE_RANK"]) == (str(rank), str(rank % 2), str(rank // 2), str(rank))
        assert (e["WORLD_SIZE"], e["LOCAL_WORLD_SIZE"], e["GROUP_WORLD_SIZE"], e["ROLE_WORLD_SIZE"]) == ("6", "2", "3", "6")
        assert (e["MASTER_ADDR"], e["MASTER_PORT"]) == (address, str(port))
        assert e["WEIGHTD_JOB"].startswith(f"gpt-node{rank // 2}:") and e["TORCHELASTIC_RUN_ID"] == "gpt"


@pytest.mark.long  # torch is imported six times; the test above has what each variable is
def test_variables_of_two_nodes_are_those_of_torchrun(require, scene, tmp_path):
    require("torch2")
    program = tmp_path / "program.py"
    program.write_text("import json, os, sys; json.dump(dict(os.environ), open(f'{sys.argv[1]}/{os.environ[\"RANK\"]}', 'w'))")
    folders = [tmp_path / "torch", tmp_path / "ours"]
    for folder in folders:
        folder.mkdir()
    port, claim = claim_port()
    with claim:
        started = [subprocess.Popen([features.TORCH2, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2", "--node-rank", str(node),
                                     "--master-addr", "127.0.0.1", "--master-port", str(port), program, folders[0]], env=scene.env,
                                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for node in range(2)]
        assert [process.wait(300) for process in started] == [0, 0]
    for node in range(2):
        run(scene, "-n", 2, "--nodes", 2, "--node", node, "--master", f"127.0.0.1:{port}", "--", sys.executable, program, folders[1])
    same = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE", "GROUP_WORLD_SIZE",
            "MASTER_ADDR", "MASTER_PORT"]
    for rank in "0123":
        theirs, ours = (json.loads((folder / rank).read_text()) for folder in folders)
        assert {name: theirs[name] for name in same} == {name: ours[name] for name in same}


def test_the_job_of_a_node_is_resumed_with_its_name(scene, notes, tmp_path):
    command = "-n", 1, "--nodes", 2, "--node", 1, "--master", "node0", "--token-file", tmp_path / "token"
    done = run(scene, *command, "--job", "gpt", "--", *python(JOIN, notes), check=False)
    assert done.returncode == 0 and "job 'gpt-node1' has not ended" in done.stderr
    done = run(scene, *command, "--job", "other", "--", *python(LEAVE, notes), check=False)
    assert done.returncode == 1 and "is of job 'gpt-node1', not of 'other-node1'" in done.stderr
    assert run(scene, *command, "--job", "gpt", "--", *python(LEAVE, notes)).stderr == "" and scene.jobs() == {}


def test_a_rank_has_no_descriptor_of_weightctl_and_a_session_of_its_own(scene, tmp_path):
    code = "import os, sys; open(sys.argv[1], 'w').write(f'{sorted(os.listdir(\"/proc/self/fd\"))} {os.getsid(0) == os.getpid()}')"
    with open("/dev/null") as null:
        run(scene, "-n", 1, "--", *python(code, tmp_path / "fds"), pass_fds=[null.fileno()])
        own = {"0", "1", "2", str(null.fileno())}
    text = (tmp_path / "fds").read_text()
    assert text.endswith("True")
    assert len(set(json.loads(text.rsplit(" ", 1)[0].replace("'", '"'))) - own) <= 2, text  # the file, and the listing


# --- The job --------------------------------------------------------------------------------------


def test_a_job_whose_ranks_all_leave_ends_without_a_word(scene, notes, tmp_path):
    done = run(scene, "-n", 2, "--token-file", tmp_path / "token", "--", *python(LEAVE, notes))
    assert (done.stdout, done.stderr) == ("", "")
    assert scene.jobs() == {} and not (tmp_path / "token").exists()
    assert len(notes.pids()) == 2


def test_the_job_has_the_name_of_the_program_unless_it_is_given(scene, notes):
    program = spawn(scene, "-n", 2, "--linger", "2h", "--", *python(STAY, notes))
    notes.pid(0), notes.pid(1)
    (name, row), = scene.jobs().items()
    assert name == f"{pathlib.Path(sys.executable).name}-{program.pid}"
    assert (row["n_ranks"], row["n_present"], row["linger_ms"]) == (2, 2, 7_200_000)
    program.terminate()
    ended(program, 128 + signal.SIGTERM)
    assert scene.jobs() == {}


@pytest.mark.parametrize("args", [["-u", "train.py"], ["-X", "dev", "./train.py", "more.sh"]])
def test_the_job_of_an_interpreter_has_the_name_of_the_script(scene, notes, tmp_path, args):
    (tmp_path / "train.py").write_text(textwrap.dedent(STAY.replace("sys.argv[1]", repr(str(notes)))))
    program = spawn(scene, "-n", 1, "--", sys.executable, *args, notes, cwd=tmp_path)
    notes.pid(0)
    assert list(scene.jobs()) == [f"train-{program.pid}"]
    program.terminate()
    ended(program, 128 + signal.SIGTERM)


@pytest.mark.parametrize("args, linger_ms", [([], 600_000), (["--linger", "3"], 3000), (["--token-file"], 0),
                                             (["--linger", "1d", "--token-file"], 86_400_000)])
def test_a_job_that_no_run_can_resume_lingers_for_ten_minutes(scene, notes, tmp_path, args, linger_ms):
    file = [tmp_path / "token"] if "--token-file" in args else []
    program = spawn(scene, "-n", 1, "--job", "train", *args, *file, "--", *python(STAY, notes))
    notes.pid(0)
    assert scene.jobs()["train"]["linger_ms"] == linger_ms
    program.terminate()
    ended(program, 128 + signal.SIGTERM)


def test_a_job_without_a_token_file_is_removed_after_a_failure(scene, notes):
    done = run(scene, "-n", 2, "--job", "train", "--", *python(JOIN + "\n    sys.exit(rank and 3)", notes), check=False)
    assert done.returncode == 3
    assert "job 'train' has not ended at step 0, and its 4.1 kB were freed; a run with --token-file keeps its job" in done.stderr
    assert scene.jobs() == {}


def test_a_job_with_a_token_file_is_resumed(scene, notes, tmp_path):
    token = tmp_path / "token"
    command = "-n", 2, "--job", "train", "--token-file", token, "--"
    write = JOIN + "\n    if rank: signal.pause()\n    os.pwrite(job.fd(), (17).to_bytes(8, 'little') + b'state', 0)\n    os._exit(5)"
    done = run(scene, *command, *python(write, notes), check=False)
    assert done.returncode == 5
    assert "job 'train' has not ended at step 17, and keeps 4.1 kB; run the same command to resume it, or remove it " \
        "(weightctl rm --job 'train')" in done.stderr
    assert token.stat().st_mode & 0o777 == 0o600 and token.read_text().startswith("train:")
    assert scene.jobs()["train"]["n_present"] == 0
    read = JOIN + "\n    assert rank or os.pread(job.fd(), 5, 8) == b'state'\n    job.leave()"
    done = run(scene, *command, *python(read, notes))
    assert done.stderr == "" and scene.jobs() == {} and not token.exists()


@pytest.mark.parametrize("what", ["another number", "another name", "no token", "others", "passwords", "another user", "a link", "gone", "changed"])
def test_a_token_file_that_does_not_fit_is_refused(require, scene, tmp_path, notes, what):
    token = tmp_path / "token"
    with Client(scene.socket) as client:
        token.write_text(client.create_job("train", 2) + "\n")
        token.chmod(0o600)
        path, options, sentence = token, ["-n", 2], None
        if what == "another number":
            options, sentence = ["-n", 3], "job 'train' has 2 ranks, not 3; run it with -n 2"
        elif what == "another name":
            options, sentence = ["-n", 2, "--job", "other"], f"the token file '{token}' is of job 'train', not of 'other'"
        elif what == "no token":
            token.write_text("")
            sentence = f"'{token}' has no token of a job"
        elif what == "others":
            token.chmod(0o640)
            sentence = f"mode 0640: others who can read it may write the memory of the job; remove the job (weightctl rm --job 'train')"
        elif what == "passwords":
            path, sentence = "/etc/passwd", "'/etc/passwd' has no token of a job; name another file"
            require("root")
        elif what == "another user":
            require("root")
            os.chown(token, 12345, 12345)
            sentence = "belongs to another user, uid 12345"
        elif what == "a link":
            path = tmp_path / "link"
            path.symlink_to(token)
            sentence = "cannot be opened: Too many levels of symbolic links"
        elif what == "gone":
            client.remove_job("train")
            sentence = f"job 'train' of the token file '{token}' is not there any more"
        elif what == "changed":
            token.write_text(token.read_text()[:-3] + "zz\n")
            sentence = "the token of a job has the form NAME:DIGITS"
        done = run(scene, *options, "--token-file", path, "--", *python(LEAVE, notes), check=False)
        assert done.returncode == 1 and sentence in done.stderr
        assert ("chmod" in done.stderr) == (what == "others")
        assert not notes.pids() and token.exists()
        if what != "gone":
            client.remove_job("train")


def test_a_job_that_exists_is_not_made_again(scene, notes):
    with Client(scene.socket) as client:
        client.create_job("train", 2)
        for n, sentence in (2, "job 'train' exists; resume it with the file of its token"), (3, "job 'train' exists, with 2 ranks, not 3"):
            done = run(scene, "-n", n, "--job", "train", "--", *python(LEAVE, notes), check=False)
            assert done.returncode == 1 and sentence in done.stderr
        client.remove_job("train")
    assert not notes.pids()


def test_a_job_with_living_ranks_is_not_run_again(scene, notes, tmp_path):
    command = "-n", 1, "--job", "train", "--token-file", tmp_path / "token", "--"
    program = spawn(scene, *command, *python(STAY, notes))
    pid = notes.pid(0)
    done = run(scene, *command, *python(STAY, notes), check=False)
    assert done.returncode == 1 and "job 'train' has 1 living rank, of a run before; end them first" in done.stderr
    assert notes.pids() == [pid]
    program.terminate()
    ended(program, 128 + signal.SIGTERM)
    scene.ctl("rm", "train")


def test_a_token_file_that_cannot_be_written_leaves_no_job(scene, tmp_path):
    done = run(scene, "-n", 1, "--token-file", tmp_path / "none/token", "--", "true", check=False)
    assert done.returncode == 1 and "cannot be written: No such file or directory" in done.stderr
    assert scene.jobs() == {}


# --- Deaths ---------------------------------------------------------------------------------------


def test_a_killed_rank_is_restarted_while_the_others_continue(scene, notes):
    program = spawn(scene, "-n", 2, "--restart", 2, "--job", "train", "--", *python(STAY, notes))
    first, other = notes.pid(0), notes.pid(1)
    os.kill(first, signal.SIGKILL)
    second = notes.pid(0, 1)
    os.kill(second, signal.SIGKILL)
    third = notes.pid(0, 2)
    assert len({first, second, third}) == 3 and os.path.exists(f"/proc/{other}") and program.poll() is None
    os.kill(third, signal.SIGKILL)
    errors = ended(program, 128 + signal.SIGKILL)
    assert f"rank 0 (process {first}) was killed by SIGKILL; restarted as process {second}, 1 of 2 times" in errors
    assert f"rank 0 (process {second}) was killed by SIGKILL; restarted as process {third}, 2 of 2 times" in errors
    assert f"rank 0 (process {third}) was killed by SIGKILL; the others are ended" in errors
    assert not os.path.exists(f"/proc/{other}")


def test_each_rank_may_be_restarted_so_often(scene, notes):
    program = spawn(scene, "-n", 3, "--restart", 1, "--", *python(STAY, notes))
    for rank in range(3):
        os.kill(notes.pid(rank), signal.SIGKILL)
    for rank in range(3):
        notes.pid(rank, 1)
    program.send_signal(signal.SIGINT)
    ended(program, 128 + signal.SIGINT)


@pytest.mark.parametrize("code, status", [("sys.exit(7)", 7), ("os.kill(os.getpid(), signal.SIGSEGV)", 128 + signal.SIGSEGV)])
def test_the_first_failure_ends_the_others_and_is_the_exit_status(scene, notes, code, status):
    program = JOIN + f"\n    {code} if rank == 1 else signal.pause()"
    done = run(scene, "-n", 3, "--", *python(program, notes), check=False)
    assert done.returncode == status
    assert "; the others are ended" in done.stderr and done.stderr.count("rank ") == 1
    assert not any(os.path.exists(f"/proc/{pid}") for pid in notes.pids())


def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace(scene, notes):
    program = JOIN + """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    tell("deaf")
    if rank == 1:
        while not os.path.exists(f"{sys.argv[1]}/0.0.deaf"):
            pass
        sys.exit(3)
    while True:
        signal.pause()
    """
    done = run(scene, "-n", 2, "--grace", "0.1", "--", *python(program, notes), check=False)
    assert done.returncode == 3 and "1 rank did not end in time, and is killed" in done.stderr
    assert not os.path.exists(f"/proc/{notes.pid(0)}")


@pytest.mark.parametrize("first, second", [(signal.SIGINT, signal.SIGINT), (signal.SIGHUP, signal.SIGTERM)])
def test_a_second_signal_kills_ranks_that_ignore_the_first(scene, notes, first, second):
    program = JOIN + """
    signal.pthread_sigmask(signal.SIG_BLOCK, {1, 2, 15})  # one that comes before signal.pause() would not end that
    tell("ready")
    while True:
        tell(f"signal{int(signal.sigwait({1, 2, 15}))}")
    """
    launcher = spawn(scene, "-n", 2, "--grace", "1h", "--", *python(program, notes))
    for rank in range(2):
        notes.pid(rank, what="ready")
    launcher.send_signal(first)
    for rank in range(2):
        notes.pid(rank, what=f"signal{first.value}")
    launcher.send_signal(second)
    assert "2 ranks did not end at the first signal, and are killed" in ended(launcher, 128 + signal.SIGKILL)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in notes.pids())
    assert not list(pathlib.Path(str(notes)).glob(f"*.signal{second.value}")) or first == second


def test_processes_of_a_dead_rank_end_before_its_successor_starts(scene, notes):
    program = JOIN + """
    if not life:
        child = os.fork()
        if child == 0:
            while True:
                signal.pause()
        tell(f"child{child}")
        os._exit(1)
    child, = (int(name.split("child")[1]) for name in os.listdir(sys.argv[1]) if "child" in name)
    state = open(f"/proc/{child}/stat").read().rsplit(")")[1].split()[0] if os.path.exists(f"/proc/{child}") else "X"
    assert state in "XZ", state
    job.leave()
    """
    done = run(scene, "-n", 1, "--restart", 1, "--", *python(program, notes))
    assert "exited with 1; restarted" in done.stderr


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_passed_on(scene, notes, sig):
    program = JOIN + """
    signal.pthread_sigmask(signal.SIG_BLOCK, {1, 2, 15})
    tell("ready")
    tell(f"signal{int(signal.sigwait({1, 2, 15}))}")
    job.leave()
    os._exit(0)
    """
    launcher = spawn(scene, "-n", 2, "--restart", 3, "--", *python(program, notes))
    for rank in range(2):
        notes.pid(rank, what="ready")
    launcher.send_signal(sig)
    assert ended(launcher, 0) == ""
    for rank in range(2):
        notes.pid(rank, what=f"signal{sig.value}")
    assert scene.jobs() == {}


def test_ranks_do_not_notice_that_weightctl_is_killed(scene, notes, tmp_path):
    program = JOIN + """
    while not os.path.exists(f"{sys.argv[1]}/end"):
        os.write(1, b"alive")
    job.leave()
    tell("left")
    """
    with open(tmp_path / "output", "wb") as output:
        launcher = spawn(scene, "-n", 2, "--token-file", tmp_path / "token", "--", *python(program, notes), stdout=output, stderr=output)
        pids = [notes.pid(rank) for rank in range(2)]
        launcher.kill()
        launcher.wait(60)
    row, = scene.jobs().values()
    assert row["n_present"] == 2 and all(os.path.exists(f"/proc/{pid}") for pid in pids)
    (pathlib.Path(str(notes)) / "end").touch()
    for rank in range(2):
        notes.pid(rank, what="left")
    until(lambda: scene.jobs() == {}, "the job has ended")


def test_a_run_goes_on_after_all_was_killed(scene, notes, tmp_path):
    """The launcher and all ranks; weightd lives."""
    command = "-n", 2, "--job", "train", "--token-file", tmp_path / "token", "--"
    launcher = spawn(scene, *command, *python(STAY, notes))
    pids = [notes.pid(rank) for rank in range(2)]
    launcher.kill()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for note in pathlib.Path(str(notes)).iterdir():
        note.unlink()
    run(scene, *command, *python(LEAVE, notes))
    assert scene.jobs() == {} and not set(notes.pids()) & set(pids)


# --- Mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("args, status, sentence", [
    (["-n", 1, "--", "no-such-program"], 127, "there is no program 'no-such-program' in $PATH"),
    (["-n", 1, "--", "./none"], 127, "there is no program './none'"),
    (["-n", 1, "--", "/etc/passwd"], 126, "'/etc/passwd' cannot be run: Permission denied"),
    (["-n", 0, "--", "true"], 2, "-n wants a number from 1 to 256, not '0'"),
    (["-n", 257, "--", "true"], 2, "-n wants a number from 1 to 256, not '257'"),
    (["-n", "x", "--", "true"], 2, "-n wants a number from 1 to 256, not 'x'"),
    (["--", "true"], 2, "wants the number of ranks, -n N"),
    (["-n", 1, "true"], 2, "'train run' wants '--' before the program 'true'"),
    (["-n", 1, "x", "--", "true"], 2, "'train run' wants no argument 'x' before '--'"),
    (["-n", 2], 2, "'train run' wants '--' and a program after its options"),
    (["-n", 1, "--"], 2, "'train run' wants a program after '--'"),
    (["-n", 1, "--linger", "0", "--", "true"], 2, "--linger wants a time, such as 90, 10m, 2h or 7d, not '0'"),
    (["-n", 1, "--linger", "5x", "--", "true"], 2, "--linger wants a time"),
    (["-n", 1, "--restart", "-1", "--", "true"], 2, "--restart wants a number"),
    (["-n", 2, "--nodes", 65, "--", "true"], 2, "--nodes wants a number from 1 to 64, not '65'"),
    (["-n", 2, "--node", 1, "--", "true"], 2, "'--node' needs the number of nodes, --nodes N"),
    (["-n", 2, "--master", "a", "--", "true"], 2, "'--master' needs the number of nodes, --nodes N"),
    (["-n", 2, "--nodes", 2, "--", "true"], 2, "--nodes needs the number of this one, --node 0 to 1"),
    (["-n", 2, "--nodes", 2, "--node", 2, "--master", "a", "--", "true"], 2, "--node wants a number from 0 to 1, not '2'"),
    (["-n", 2, "--nodes", 2, "--node", 0, "--", "true"], 2, "--nodes needs the address of node 0, --master HOST"),
    (["-n", 5, "--nodes", 64, "--node", 0, "--master", "a", "--", "true"], 2, "64 nodes with 5 ranks each are more than 256 ranks"),
    (["-n", 2, "--nodes", 2, "--node", 0, "--master", "a:65532", "--", "true"], 2, "--master wants a port up to 65531, not 65532"),
    (["-n", 2, "--nodes", 2, "--node", 0, "--master", "a:0", "--", "true"], 2, "the port of --master wants a number from 1 to 65535"),
    (["-n", 2, "--nodes", 2, "--node", 0, "--master", "a b", "--", "true"], 2, "--master wants the address of node 0"),
    (["-n", 2, "--nodes", 2, "--node", 0, "--master", "fd00::1]:1", "--", "true"], 2, "--master wants the address of node 0"),
    (["-n", 2, "--nodes", 2, "--node", 0, "--master", "a:b:1", "--", "true"], 2, "--master wants the address of node 0"),
    (["-n", 2, "--nodes", 2, "--node", 0, "--master", "[a", "--", "true"], 2, "--master wants the address of node 0"),
    (["-n", 2, "--nodes", 2, "--node", 0, "--master", "", "--", "true"], 2, "--master wants the address of node 0"),
    (["-n", 1, "--job", "bad name", "--", "true"], 1, "a job's name is 1 to 127 of"),
])
def test_a_mistake_is_explained_before_anything_is_made(scene, args, status, sentence):
    done = run(scene, *args, check=False)
    assert done.returncode == status and sentence in done.stderr and done.stdout == ""
    assert scene.jobs() == {}


def test_without_a_server_nothing_is_started(scene, notes, tmp_path):
    done = run(scene, "-n", 1, "--socket", tmp_path / "none", "--", *python(LEAVE, notes), check=False)
    assert done.returncode == 1 and "no weightd answers" in done.stderr and not notes.pids()

"""weightctl exec: programs that load a version by its path, and the process that holds it for them."""
import hashlib
import json
import os
import pathlib
import pty
import shutil
import signal
import socket
import struct
import subprocess
import sys
import textwrap

import pytest
from lib import features, gguf, wire
from lib.daemon import copy_for_others
from lib.model_files import can_open, data_of, holder_of, kill_holder, readers, write_model
from lib.wire import until

OTHER = 12345
FIRST_FD = 900

# A program that prints the digest of the tensors in a file.
DIGEST = "import hashlib, sys; b = open(sys.argv[1], 'rb').read(); print(hashlib.sha256(b[8 + int.from_bytes(b[:8], 'little'):]).hexdigest())"


def digest(whole):
    return hashlib.sha256(data_of(whole)).hexdigest()


def is_held(folder, whole):
    """True if the directory has these weights."""
    return data_of((folder / "model.safetensors").read_bytes()) == data_of(whole)


@pytest.fixture
def runtime(tmp_path):
    """$XDG_RUNTIME_DIR of the test: model directories are made there, and nowhere else."""
    folder = tmp_path / "runtime"
    folder.mkdir(mode=0o755)
    return folder


@pytest.fixture
def weights(tmp_path):
    """The bytes of the file that buffer m is loaded from, tmp_path / "model.safetensors"."""
    return write_model(tmp_path / "model.safetensors")


@pytest.fixture
def scene(daemon, runtime, weights, tmp_path):
    """A daemon with buffer m, which must have no reader and no directory at the end."""
    daemon.env["XDG_RUNTIME_DIR"] = str(runtime)
    daemon.ctl("load", "m", tmp_path / "model.safetensors", "-q")
    yield daemon
    for program in daemon.started:
        program.kill()
    until(lambda: not list(runtime.iterdir()), lambda: f"left behind: {list(runtime.iterdir())}")
    until(lambda: not any(readers(daemon).values()), "the leases have ended")


def python(code, *args):
    return sys.executable, "-c", textwrap.dedent(code), *args


@pytest.fixture
def waiting(scene):
    """waiting(): the program, which runs until its input ends, and its model directory."""
    def start(*names, code="import os, sys; print(os.environ['WEIGHTD_MODEL'], flush=True); sys.stdin.read()", options=(), **kw):
        program = scene.spawn("exec", *options, *(names or ["m"]), "--", *python(code), stdin=subprocess.PIPE, text=True,
                              stderr=None, **kw)
        return program, pathlib.Path(program.stdout.readline().rstrip("\n"))

    return start


def end(program):
    program.stdin.close()
    program.stdin = None
    assert program.wait(60) == 0


# --- The program ------------------------------------------------------------------------------------


def test_the_path_stands_for_the_braces_and_in_the_environment(scene, weights):
    code = """
        import os, sys
        whole, part, none, twice = sys.argv[1:]
        folder = os.environ["WEIGHTD_MODEL"]
        assert (whole, part, none, twice) == (folder, f"--model={folder}", "{", f"{folder}:{folder}/x"), sys.argv
        assert os.path.isabs(folder) and os.path.isfile(folder + "/model.safetensors")
        sys.stdout.buffer.write(open(folder + "/model.safetensors", "rb").read())
    """
    done = scene.ctl("exec", "m", "--", *python(code, "{}", "--model={}", "{", "{}:{}/x"), text=False)
    assert data_of(done.stdout) == data_of(weights)


@pytest.mark.parametrize("status", [0, 1, 7, 255])
def test_the_exit_status_is_the_programs(scene, status):
    assert scene.ctl("exec", "m", "--", "sh", "-c", f"exit {status}", check=False).returncode == status


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGKILL])
def test_the_end_by_a_signal_is_the_programs(scene, sig):
    assert scene.ctl("exec", "m", "--", "sh", "-c", f"kill -{sig} $$", check=False).returncode == -sig


def test_a_signal_reaches_the_program(waiting):
    program, folder = waiting()
    program.send_signal(signal.SIGTERM)
    assert program.wait(60) == -signal.SIGTERM


def test_the_program_is_the_process_that_was_started_and_has_no_child(waiting):
    code = """
        import os, sys
        print(os.environ["WEIGHTD_MODEL"])
        try:
            os.waitpid(-1, os.WNOHANG)
            print("a child")
        except ChildProcessError:
            print(os.getpid(), os.getpgid(0), os.getsid(0), flush=True)
        sys.stdin.read()
    """
    program, folder = waiting(code=code)
    assert program.stdout.readline().split() == [str(n) for n in (program.pid, os.getpgid(0), os.getsid(0))]
    holder, _ = holder_of(folder)
    assert holder != program.pid and os.getsid(holder) != os.getsid(0)
    end(program)


def test_the_program_has_the_descriptors_of_the_caller_and_no_other(scene):
    with open("/dev/zero") as zero:
        done = scene.ctl("exec", "m", "--", *python("import os; print(*sorted(map(int, os.listdir('/proc/self/fd'))))"),
                         pass_fds=[zero.fileno()])
        own = max(3, 3 + (zero.fileno() == 3))  # that of the listing itself
        assert set(map(int, done.stdout.split())) - {own} == {0, 1, 2, zero.fileno()} - {own}


def test_a_closed_input_stays_closed(scene):
    command = [str(word) for word in scene.ctl_command(["exec", "m", "--", "sh", "-c", "test -e /proc/self/fd/0"])]
    done = subprocess.run(["sh", "-c", 'exec "$@" <&-', "sh", *command], env=scene.env, timeout=60)
    assert done.returncode == 1


def test_the_holder_keeps_no_pipe_of_the_program_open(scene):
    code = "import os, sys; os.close(int(sys.argv[1])); os.close(1); sys.stdin.read()"
    ours, theirs = os.pipe()
    program = scene.spawn("exec", "m", "--", *python(code, str(theirs)), stdin=subprocess.PIPE, pass_fds=[theirs])
    os.close(theirs)
    assert os.read(ours, 1) == b"" and program.stdout.read() == b""  # while the program runs
    assert program.poll() is None
    os.close(ours)
    end(program)


def test_a_terminal_stays_the_programs(scene):
    ours, theirs = pty.openpty()
    code = "import os; os.tcgetpgrp(0) == os.getpgid(0) or exit('in the background'); input(); print(os.ttyname(1))"
    program = scene.spawn("exec", "m", "--", *python(code), stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
                          preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0))
    os.write(ours, b"\n")
    assert program.wait(60) == 0, os.read(ours, 4096)
    os.close(theirs)
    os.close(ours)


def holders_waiting(pid):
    """The processes that wait as the holder of that one would: it has become no program yet."""
    return [entry for entry in os.listdir("/proc") if entry.isdigit() and is_holder_of(entry, pid)]


def is_holder_of(entry, pid):
    try:
        if pathlib.Path(f"/proc/{entry}/comm").read_text() != "weightd-holder\n":
            return False
        fds = pathlib.Path(f"/proc/{entry}/fdinfo")
        return any(f"Pid:\t{pid}\n" in fd.read_text() for fd in fds.iterdir())
    except OSError:
        return False


def test_a_starter_that_is_gone_gets_no_sentence_of_its_holder(scene, tmp_path):
    """The terminal is the shell's again."""
    ours, theirs = os.pipe()
    scene.proc.send_signal(signal.SIGSTOP)
    program = scene.spawn("exec", "m", "--", "true", stderr=theirs)
    os.close(theirs)
    until(lambda: holders_waiting(program.pid), "the holder has started")
    program.kill()
    program.wait(60)
    scene.proc.kill()
    scene.proc.wait()
    with open(ours, "rb") as f:
        assert f.read() == b""  # until the holder has ended
    scene.start()
    scene.ctl("load", "m", tmp_path / "model.safetensors", "-q")


# --- The holder -------------------------------------------------------------------------------------


def test_a_running_program_keeps_its_version(scene, waiting, weights, tmp_path):
    program, folder = waiting()
    other = write_model(tmp_path / "other.safetensors", seed=2)
    for _ in range(3):
        scene.ctl("load", "m", tmp_path / "other.safetensors", "-q")
    assert readers(scene)[1] == 1
    assert is_held(folder, weights)
    newer, newer_folder = waiting()
    assert is_held(newer_folder, other)
    old, old_folder = waiting("m@1")
    assert is_held(old_folder, weights)
    for started in program, newer, old:
        end(started)


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT])
def test_the_holder_leaves_the_signals_of_a_group_to_the_program(waiting, weights, sig):
    code = """
        import os, signal, sys
        signal.pthread_sigmask(signal.SIG_BLOCK, [1, 2, 3, 15])
        print(os.environ["WEIGHTD_MODEL"], flush=True)
        sys.stdin.read()
    """
    program, folder = waiting(code=code, start_new_session=True)
    holder, _ = holder_of(folder)
    os.killpg(program.pid, sig)
    os.kill(holder, sig)
    assert is_held(folder, weights)
    end(program)


def test_the_holder_ends_with_a_killed_program(waiting):
    program, folder = waiting()
    holder, _ = holder_of(folder)
    program.kill()
    program.wait(60)
    until(lambda: not folder.exists(), "the directory is removed")
    until(lambda: not pathlib.Path(f"/proc/{holder}").exists(), "the holder has ended")


def test_the_holder_keeps_its_lease_over_restarts(make_daemon, runtime, weights, tmp_path):
    daemon = make_daemon("--keeper", env={"XDG_RUNTIME_DIR": str(runtime)})
    daemon.ctl("load", "m", tmp_path / "model.safetensors", "-q")
    program = daemon.spawn("exec", "m", "--", *python("import os, sys; print(os.environ['WEIGHTD_MODEL'], flush=True); sys.stdin.read()"),
                           stdin=subprocess.PIPE, text=True)
    folder = pathlib.Path(program.stdout.readline().rstrip("\n"))
    for _ in range(2):
        before = json.loads(daemon.ctl("ping", "--json").stdout)
        os.kill(before["pid"], signal.SIGKILL)
        until(lambda: json.loads(daemon.ctl("ping", "--json").stdout)["pid"] != before["pid"], "it was started again")
        until(lambda: readers(daemon) == {1: 1}, lambda: f"the lease was taken up: {readers(daemon)}")
    for _ in range(3):
        daemon.ctl("load", "m", tmp_path / "model.safetensors", "-q")
    assert readers(daemon)[1] == 1
    assert is_held(folder, weights)
    end(program)
    until(lambda: readers(daemon)[1] == 0, "the lease has ended")


def test_after_the_death_of_a_holder_the_weights_are_missing_and_the_next_one_cleans_up(scene, waiting, runtime):
    program, folder = waiting()
    kill_holder(folder)
    assert folder.exists() and not can_open(folder / "model.safetensors")
    end(program)
    scene.ctl("exec", "m", "--", "test", "!", "-e", folder)
    until(lambda: not list(runtime.iterdir()), "the second directory is removed")


def test_the_directory_is_read_only(waiting, runtime):
    program, folder = waiting()
    link = folder / "model.safetensors"
    for change in (lambda: (folder / "new").write_text("x"), lambda: link.unlink(), lambda: link.rename(folder / "old"),
                   lambda: os.replace(__file__ + ".none", link), lambda: (folder / "sub").mkdir()):
        with pytest.raises(OSError):
            change()
    with pytest.raises(PermissionError):
        os.replace(shutil.copy(__file__, runtime / "new"), link)
    (runtime / "new").unlink()
    with pytest.raises(PermissionError):
        open(link, "wb")
    assert link.is_symlink()
    end(program)


# --- Several processes ------------------------------------------------------------------------------

PROCESSES = """
    import hashlib, multiprocessing, os, subprocess, sys

    def digest(path, queue=None):
        whole = open(path, "rb").read()
        found = hashlib.sha256(whole[8 + int.from_bytes(whole[:8], "little"):]).hexdigest()
        queue.put(found) if queue else print(found)

    if __name__ == "__main__":
        path = sys.argv[1] + "/model.safetensors"
        how = sys.argv[2]
        if how == "subprocess":
            subprocess.run([sys.executable, "-c", sys.argv[3], path], check=True)
        elif how == "orphan":
            queue = multiprocessing.SimpleQueue()
            ready, go = os.pipe()
            child = os.fork()
            if child == 0:
                if os.fork() == 0:
                    os.close(go)
                    os.read(ready, 1)  # until the parent has ended
                    digest(path, queue)
                os._exit(0)
            os.waitpid(child, 0)
            os.close(go)
            print(queue.get())
        else:
            context = multiprocessing.get_context(how)
            queue = context.SimpleQueue()
            child = context.Process(target=digest, args=(path, queue))
            child.start()
            print(queue.get())
            child.join()
"""


@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver", "subprocess", "orphan"])
def test_processes_below_the_program_read_the_same_weights(scene, weights, tmp_path, how):
    (tmp_path / "program.py").write_text(textwrap.dedent(PROCESSES))
    done = scene.ctl("exec", "m", "--", sys.executable, tmp_path / "program.py", "{}", how, DIGEST)
    assert done.stdout.split() == [digest(weights)]


def test_another_user_is_refused(scene, require):
    require("root")
    done = scene.ctl("exec", "m", "--", "setpriv", f"--reuid={OTHER}", f"--regid={OTHER}", "--clear-groups",
                     "cat", "{}/model.safetensors", check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Permission denied" in done.stderr


def test_a_user_without_privileges_has_the_same(make_daemon, weights, tmp_path, require):
    """Modes alone keep this user from writing."""
    require("root")
    daemon = make_daemon("--socket-mode", "0666")
    runtime = daemon.folder / "runtime"
    runtime.mkdir()
    os.chown(runtime, OTHER, OTHER)
    daemon.ctl("load", "--mode", "0644", "m", tmp_path / "model.safetensors", "-q")
    program = copy_for_others("weightctl", daemon.folder)
    script = f'tail -c {len(data_of(weights))} {{}}/model.safetensors | sha256sum; cp /dev/null {{}}/new || rm -f {{}}/model.safetensors || stat -c %a {{}}'
    done = subprocess.run(["setpriv", f"--reuid={OTHER}", f"--regid={OTHER}", "--clear-groups", program, "exec", "m", "--",
                           "sh", "-c", script], env=daemon.env | {"XDG_RUNTIME_DIR": str(runtime)}, cwd="/",
                          capture_output=True, text=True, timeout=60)
    assert [line.split()[0] for line in done.stdout.splitlines()] == [digest(weights), "555"], done.stderr
    assert done.stderr.count("Permission denied") == 2
    until(lambda: not list(runtime.iterdir()), "the directory is removed")


def test_a_changed_mode_of_the_memory_is_told(make_daemon, weights, tmp_path, require):
    require("root")
    daemon = make_daemon("--socket-mode", "0666")
    runtime = daemon.folder / "runtime"
    runtime.mkdir()
    os.chown(runtime, OTHER, OTHER)
    daemon.ctl("load", "--mode", "0644", "m", tmp_path / "model.safetensors", "-q")
    daemon.ctl("exec", "m", "--", "chmod", "0", "{}/model.safetensors")
    done = subprocess.run(["setpriv", f"--reuid={OTHER}", f"--regid={OTHER}", "--clear-groups",
                           copy_for_others("weightctl", daemon.folder), "exec", "m", "--", "echo", "started"],
                          env=daemon.env | {"XDG_RUNTIME_DIR": str(runtime)}, cwd="/", capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (125, "")
    assert "Permission denied" in done.stderr and "changed the mode of the memory" in done.stderr and "/proc is" not in done.stderr
    until(lambda: not list(runtime.iterdir()), "the directory is removed")


@pytest.mark.parametrize("mode, shown", [("0640", "500"), ("0644", "555")])
def test_others_may_look_at_what_they_may_attach(scene, mode, shown):
    scene.ctl("chmod", mode, "m")
    assert scene.ctl("exec", "m", "--", "stat", "-c", "%a", "{}").stdout == f"{shown}\n"


def test_a_socket_path_may_be_relative(scene, weights):
    folder, name = os.path.split(scene.socket)
    done = scene.ctl("--socket", f"./{name}", "exec", "m", "--", *python(DIGEST, "{}/model.safetensors"), cwd=folder)
    assert done.stdout.split() == [digest(weights)]


# --- Several versions -------------------------------------------------------------------------------


def test_several_names_have_a_folder_each(scene, weights, tmp_path):
    other = write_model(tmp_path / "other.safetensors", seed=2)
    scene.ctl("load", "org/other", tmp_path / "other.safetensors", "-q")
    done = scene.ctl("exec", "m@1", "org/other", "--", "sh", "-c",
                     f"cd {{}} && tail -qc {len(data_of(weights))} m/model.safetensors org/other/model.safetensors | sha256sum && "
                     "find . -type l | wc -l")
    assert done.stdout.split()[::2] == [hashlib.sha256(data_of(weights) + data_of(other)).hexdigest(), "2"]
    scene.ctl("rm", "org/other")


def test_files_beside_the_weights_stand_beside_the_link(scene, weights, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    shutil.copy(tmp_path / "model.safetensors", folder)
    (folder / "config.json").write_text('{"model_type": "none"}')
    (folder / "vocab.txt").write_bytes(bytes(range(256)))
    scene.ctl("load", "m", folder, "-q")
    done = scene.ctl("exec", "m", "--", "sh", "-c", "cd {} && ls && cat config.json vocab.txt", text=False)
    assert done.stdout == b'config.json\nmodel.safetensors\nvocab.txt\n{"model_type": "none"}' + bytes(range(256))


def test_the_attribute_weights_names_the_link(scene, weights, tmp_path):
    scene.ctl("load", "--attribute", "weights=unet/diffusion.safetensors", "--mode", "0640", "d", tmp_path / "model.safetensors", "-q")
    done = scene.ctl("exec", "d", "--", "sh", "-c", "cd {} && find . ! -type d && stat -L -c %a unet unet/diffusion.safetensors")
    assert done.stdout.split() == ["./unet/diffusion.safetensors", "500", "444"]


def test_a_file_of_weights_alone_is_the_same_byte_for_byte(scene, weights, tmp_path):
    scene.ctl("load", "verbatim", tmp_path / "model.safetensors", "-q")
    assert scene.ctl("exec", "verbatim", "--", "cat", "{}/model.safetensors", text=False).stdout == weights
    model = tmp_path / "small.gguf"
    gguf.write(model, {"w": ("F32", [4], b"\1" * 16)})
    scene.ctl("load", "gguf", model, "-q")
    done = scene.ctl("exec", "gguf", "--", "sh", "-c", "ls {} && cat {}/*", text=False)
    assert done.stdout == b"model.gguf\n" + model.read_bytes()


def test_files_of_a_hostile_writer_make_no_directory(scene, runtime):
    """The library of the reader checks them again."""
    entry = {"../outside": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}
    text = json.dumps(entry).encode()
    with wire.Wire(scene.socket, features=wire.IMAGES) as writer:
        slot = writer.create_image("hostile", wire.image([("t", 64)]), 4096)
        writer.set_files(slot.writer, struct.pack("<Q", len(text)) + text + b"x")
        writer.publish(slot.writer)
        writer.detach(slot.writer)
    done = scene.ctl("exec", "hostile", "--", "echo", "started", check=False)
    assert (done.returncode, done.stdout) == (125, "") and "'../outside' cannot be the path" in done.stderr
    assert not (runtime / "outside").exists()


def test_a_folder_without_room_for_the_files_is_passed_over(scene, runtime, weights, tmp_path):
    features.require("mounts")
    folder, second = tmp_path / "folder", tmp_path / "second"
    folder.mkdir()
    second.mkdir()
    shutil.copy(tmp_path / "model.safetensors", folder)
    (folder / "vocab.txt").write_bytes(bytes(300_000))
    scene.ctl("load", "m", folder, "-q")
    command = list(map(str, scene.ctl_command(["exec", "m", "--", "sh", "-c", 'stat -c "%n %s" {}/vocab.txt; ls -A $XDG_RUNTIME_DIR'])))
    done = subprocess.run(["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=64k none $XDG_RUNTIME_DIR && exec "$@"', "sh", *command],
                          env=scene.env | {"TMPDIR": str(second)}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    path, size = done.stdout.split()
    assert os.path.dirname(os.path.dirname(path)) == str(second) and size == "300000"
    until(lambda: not list(second.iterdir()), "the directory is removed")


@pytest.mark.parametrize("names, sentence", [
    (["m", "m@1"], "'m' is named twice; a directory has one version of a buffer"),
    (["m", "a/../b"], "'a/../b' cannot be the name of a folder, which several models need; name it alone"),
])
def test_names_that_cannot_stand_side_by_side_are_refused(scene, names, sentence):
    done = scene.ctl("exec", *names, "--", "true", check=False)
    assert (done.returncode, done.stderr) == (125, f"weightctl: {sentence}\n")


def test_a_version_that_is_gone_and_a_buffer_that_is_not_there(scene):
    done = scene.ctl("exec", "m@7", "--", "true", check=False)
    assert (done.returncode, done.stderr) == \
        (125, "weightctl: 'm' on host has no version 7; 'weightctl history m' lists those it has\n")
    for verb in (["files", "m@7"], ["cat", "m@7", "w"]):
        other = scene.ctl(*verb, check=False)
        assert (other.returncode, other.stderr) == (1, done.stderr), verb
    done = scene.ctl("exec", "n", "--", "true", check=False)
    assert (done.returncode, done.stderr) == \
        (125, "weightctl: there is no buffer 'n' on host; 'weightctl ls' lists those there are\n")
    done = scene.ctl("exec", "m", "n", "--", "true", check=False)
    assert (done.returncode, done.stderr) == \
        (125, "weightctl: there is no buffer 'n' on host; 'weightctl ls' lists those there are\n")


def test_a_buffer_on_a_gpu_is_refused_with_the_way_out(make_daemon, gpu, weights, tmp_path):
    daemon = make_daemon(env=gpu.env)
    daemon.ctl("load", "--device", "cuda:0", "m", tmp_path / "model.safetensors", "-q")
    done = daemon.ctl("exec", "m", "--", "true", check=False)
    assert (done.returncode, done.stderr) == \
        (125, "weightctl: 'm' is on a GPU, and only versions in host memory are files; load it to the host, too "
              "(weightctl load m PATH)\n")


@pytest.mark.parametrize("kind", ["--exclusive", "--reusable"])
def test_a_version_that_is_no_file_is_refused_with_the_way_out(scene, tmp_path, kind):
    scene.ctl("load", kind, "flat", tmp_path / "model.safetensors", "-q")
    done = scene.ctl("exec", "flat", "--", "true", check=False)
    assert done.returncode == 125
    assert done.stderr.startswith("weightctl: 'flat@1' is not stored as a file: ")
    assert "weightctl save flat@1 DIR" in done.stderr


# --- Programs that cannot be run --------------------------------------------------------------------


def refusal(scene, *command, status):
    done = scene.ctl("exec", "m", "--", *command, check=False)
    assert (done.returncode, done.stdout) == (status, "")
    return done.stderr


def test_a_program_that_is_not_there(scene):
    assert refusal(scene, "no-such", status=127) == "weightctl: there is no program 'no-such' in $PATH\n"
    assert refusal(scene, "/no/such", status=127) == "weightctl: there is no program '/no/such'\n"
    assert refusal(scene, "", status=127) == "weightctl: there is no program '' in $PATH\n"


def test_a_folder_of_the_path_that_cannot_be_entered_is_passed_over(scene, tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    env = {"PATH": f"{closed}:{tmp_path / 'none'}:{os.environ['PATH']}"}
    assert scene.ctl("exec", "m", "--", "true", env=env).returncode == 0
    done = scene.ctl("exec", "m", "--", "no-such", env=env, check=False)
    assert (done.returncode, done.stderr) == (127, "weightctl: there is no program 'no-such' in $PATH\n")


def test_a_program_that_cannot_be_executed(scene, tmp_path):
    program = tmp_path / "program"
    program.write_text("echo\n")
    assert refusal(scene, program, status=126) == f"weightctl: '{program}' cannot be run: Permission denied\n"
    program.chmod(0o755)
    assert refusal(scene, program, status=126) == \
        f"weightctl: '{program}' cannot be run: it is neither a program of this machine nor a script with #!\n"
    assert refusal(scene, tmp_path, status=126) == f"weightctl: '{tmp_path}' cannot be run: Permission denied\n"
    program.write_text("#!/no/such\n")
    assert refusal(scene, program, status=127) == \
        f"weightctl: '{program}' is a script for '/no/such', which cannot be run: No such file or directory\n"


def make_set_id(path, require):
    shutil.copy("/bin/true", path)
    os.chmod(path, 0o4755)
    return "changes its user (set-user-ID)"


def make_set_group_id(path, require):
    shutil.copy("/bin/true", path)
    os.chmod(path, 0o2755)
    return "changes its group (set-group-ID)"


def make_capable(path, require):
    require("root")
    shutil.copy("/bin/true", path)
    try:
        os.setxattr(path, "security.capability", bytes.fromhex("0100000200040000000000000000000000000000"))
    except OSError as e:
        pytest.skip(f"no capabilities of files: {e}")
    return "gets capabilities from its file"


@pytest.mark.parametrize("make", [make_set_id, make_set_group_id, make_capable])
def test_programs_with_other_privileges_are_refused(scene, tmp_path, require, make):
    program, script, nested = tmp_path / "program", tmp_path / "script", tmp_path / "nested"
    why = make(program, require)
    sentence = f"weightctl: '{program}' {why}, and then cannot read the weights of this user's holder; run it without weightctl exec\n"
    assert refusal(scene, program, status=126) == sentence
    script.write_text(f"#! {program} -x\n")
    nested.write_text(f"#!{script}\n")
    for path in script, nested:
        path.chmod(0o755)
        assert refusal(scene, path, status=126) == sentence


def test_a_script_is_run(scene, tmp_path):
    script = tmp_path / "script"
    script.write_text('#!/bin/sh\necho "$1" "$WEIGHTD_MODEL"\n')
    script.chmod(0o755)
    first, second = scene.ctl("exec", "m", "--", "script", "{}", env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}).stdout.split()
    assert first == second


@pytest.mark.parametrize("args", [["m"], ["m", "--"], ["--", "true"], [], ["m@x", "--", "true"], ["--no-such", "m", "--", "true"]])
def test_wrong_arguments(scene, args):
    done = scene.ctl("exec", *args, check=False)
    assert done.returncode == 2 and "Try 'weightctl exec --help'." in done.stderr


def test_options_of_the_program_are_its_own(scene):
    assert scene.ctl("exec", "m", "--", "echo", "--inherit", "--", "-x", "--help").stdout == "--inherit -- -x --help\n"


# --- Where the holder cannot be reached -------------------------------------------------------------


def test_another_pid_namespace_is_told_before_the_program_starts(scene, weights, require):
    require("root")
    command = list(map(str, scene.ctl_command(["exec"])))
    done = subprocess.run(["unshare", "--pid", "--fork", *command, "m", "--", "echo", "started"], env=scene.env,
                          capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (125, "")
    assert "shows another PID namespace; --inherit works without" in done.stderr
    done = subprocess.run(["unshare", "--pid", "--fork", *command, "--inherit", "m", "--", *python(DIGEST, "{}/model.safetensors")],
                          env=scene.env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.split()) == (0, [digest(weights)]), done.stderr
    # The kernel has killed the holder with the namespace.
    scene.ctl("exec", "m", "--", "true")


def test_inherited_descriptors_begin_at_a_number_that_is_free(scene, weights, tmp_path):
    other = write_model(tmp_path / "other.safetensors", seed=2)
    scene.ctl("load", "other", tmp_path / "other.safetensors", "-q")
    code = """
        import hashlib, os, sys
        for name in sys.argv[2:]:
            path = f"{sys.argv[1]}/{name}/model.safetensors"
            whole = open(path, "rb").read()
            print(os.readlink(path), hashlib.sha256(whole[8 + int.from_bytes(whole[:8], "little"):]).hexdigest())
        print(*sorted(n for n in map(int, os.listdir("/proc/self/fd")) if n >= 900))
    """
    def run(taken=()):
        lines = scene.ctl("exec", "--inherit", "m", "other", "--", *python(code, "{}", "m", "other"), pass_fds=taken).stdout
        return [line.split() for line in lines.splitlines()]

    def wanted(first):
        return [[f"/proc/self/fd/{first}", digest(weights)], [f"/proc/self/fd/{first + 1}", digest(other)]]

    assert run() == [*wanted(FIRST_FD), ["900", "901"]]
    with open("/dev/null") as file:
        taken = os.dup2(file.fileno(), FIRST_FD + 1, inheritable=True)
        try:
            assert run([taken]) == [*wanted(FIRST_FD + 2), ["901", "902", "903"]]
        finally:
            os.close(taken)
    scene.ctl("rm", "other")


def test_too_few_descriptors_to_inherit(scene):
    command = [str(word) for word in scene.ctl_command(["exec", "--inherit", "m", "--", "true"])]
    done = subprocess.run(["sh", "-c", 'ulimit -n 900 && exec "$@"', "sh", *command], env=scene.env, capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 125
    assert done.stderr == "weightctl: the program cannot have descriptor 900: Too many open files; raise the limit (ulimit -n)\n"


def test_too_few_descriptors_for_a_holder(scene):
    command = [str(word) for word in scene.ctl_command(["exec", "m", "--", "true"])]
    done = subprocess.run(["sh", "-c", 'ulimit -n 5 && exec "$@"', "sh", *command], env=scene.env, capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 125
    assert done.stderr == "weightctl: cannot start a holder: Too many open files; raise the limit (ulimit -n)\n"


def test_without_a_server(tmp_path, daemon):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        s.bind(str(tmp_path / "dead.sock"))
    done = daemon.ctl("exec", "m", "--", "echo", "started", env={"WEIGHTD_SOCKET": str(tmp_path / "dead.sock")}, check=False)
    assert (done.returncode, done.stdout) == (125, "") and "dead.sock" in done.stderr

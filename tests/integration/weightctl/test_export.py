"""weightctl export --hold: a version as a directory, until a signal ends weightctl."""
import os
import signal
import subprocess

import pytest
from lib.model_files import data_of, holder_of, kill_holder, readers, write_model
from lib.wire import until


@pytest.fixture
def weights(tmp_path):
    return write_model(tmp_path / "model.safetensors")


@pytest.fixture
def scene(daemon, weights, tmp_path):
    daemon.ctl("load", "m", tmp_path / "model.safetensors", "-q")
    return daemon


@pytest.fixture
def export(scene, tmp_path):
    """export("m"): the process that holds tmp_path / "exported", once it is there."""
    def start(*names, folder=tmp_path / "exported", **kw):
        process = scene.spawn("export", *names, folder, "--hold", text=True, **kw)
        line = process.stdout.readline()
        assert line == f"{tmp_path / folder}\n", process.stderr.read()
        return process

    return start


def is_held(folder, whole):
    return data_of((folder / "model.safetensors").read_bytes()) == data_of(whole)


def end(process, sig=signal.SIGTERM):
    process.send_signal(sig)
    assert process.wait(60) == 0, process.stderr.read()


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_directory_lasts_until_a_signal(scene, export, weights, tmp_path, sig):
    folder = tmp_path / "exported"
    process = export("m")
    assert is_held(folder, weights)
    assert holder_of(folder)[0] == process.pid
    assert readers(scene) == {1: 1}
    end(process, sig)
    assert not folder.exists()
    assert readers(scene) == {1: 0}


def test_several_names_have_a_folder_each(scene, export, weights, tmp_path):
    other = write_model(tmp_path / "other.safetensors", seed=2)
    scene.ctl("load", "org/other", tmp_path / "other.safetensors", "-q")
    process = export("m", "org/other")
    assert is_held(tmp_path / "exported/m", weights) and is_held(tmp_path / "exported/org/other", other)
    end(process)


def test_a_relative_path_is_printed_as_an_absolute_one(export, weights, tmp_path):
    process = export("m", folder="here", cwd=tmp_path)
    assert is_held(tmp_path / "here", weights)
    end(process)


def test_an_empty_directory_is_used_and_stays(export, weights, tmp_path):
    folder = tmp_path / "exported"
    folder.mkdir(mode=0o750)
    process = export("m")
    assert is_held(folder, weights)
    end(process)
    assert not list(folder.iterdir()) and folder.stat().st_mode & 0o7777 == 0o750


def refusal(scene, *args):
    done = scene.ctl("export", *args, "--hold", check=False)
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr


def test_a_directory_with_something_in_it_is_refused(scene, tmp_path):
    assert refusal(scene, "m", tmp_path) == \
        f"weightctl: '{tmp_path}' is not empty; name an empty directory, or one that does not exist yet\n"
    assert (tmp_path / "model.safetensors").exists()
    assert readers(scene) == {1: 0}


def test_a_directory_that_cannot_be_made_is_refused(scene, tmp_path):
    assert refusal(scene, "m", tmp_path / "none/here") == f"weightctl: '{tmp_path}/none/here' cannot be made: No such file or directory\n"
    file = tmp_path / "model.safetensors"
    assert refusal(scene, "m", file) == f"weightctl: '{file}' cannot be made: Not a directory\n"


def test_a_directory_of_another_holder_is_refused(scene, export, weights, tmp_path):
    process = export("m")
    assert refusal(scene, "m", tmp_path / "exported") == \
        f"weightctl: '{tmp_path}/exported' is in use by another holder; end that first\n"
    assert is_held(tmp_path / "exported", weights)
    end(process)


def test_a_directory_of_another_user_is_refused(scene, tmp_path, require):
    require("root")
    folder = tmp_path / "theirs"
    folder.mkdir()
    os.chown(folder, 12345, 12345)
    assert refusal(scene, "m", folder) == \
        f"weightctl: '{folder}' belongs to another user; name a directory that does not exist yet\n"


def test_the_directory_of_a_killed_holder_is_taken_over(export, weights, tmp_path):
    first = export("m")
    kill_holder(tmp_path / "exported")
    first.wait(60)
    second = export("m")
    assert is_held(tmp_path / "exported", weights)
    end(second)


def test_a_buffer_that_is_not_there_leaves_nothing(scene, tmp_path):
    assert "there is no buffer 'none' on host" in refusal(scene, "none", tmp_path / "exported")
    assert not (tmp_path / "exported").exists()


def test_the_directory_lasts_over_restarts(make_daemon, weights, tmp_path):
    daemon = make_daemon("--keeper")
    daemon.ctl("load", "m", tmp_path / "model.safetensors", "-q")
    process = daemon.spawn("export", "m", tmp_path / "exported", "--hold", text=True)
    assert process.stdout.readline()
    daemon.ctl("load", "m", tmp_path / "model.safetensors", "-q")
    os.kill(int(daemon.ctl("ping", "--json").stdout.split('"pid": ')[1].split(",")[0].rstrip("}\n")), signal.SIGKILL)
    until(lambda: readers(daemon).get(1) == 1, lambda: f"the lease was taken up: {readers(daemon)}")
    assert is_held(tmp_path / "exported", weights)
    end(process)


def test_an_output_without_a_reader_leaves_nothing(scene, tmp_path):
    ours, theirs = os.pipe()
    os.close(ours)
    process = scene.spawn("export", "m", tmp_path / "exported", "--hold", stdout=theirs)
    os.close(theirs)
    assert process.wait(60) == 1 and not (tmp_path / "exported").exists()


@pytest.mark.parametrize("args", [["m", "dir"], ["m", "--hold"], ["--hold"], ["m@x", "dir", "--hold"]])
def test_wrong_arguments(scene, args):
    done = scene.ctl("export", *args, check=False)
    assert done.returncode == 2 and "Try 'weightctl export --help'." in done.stderr


def test_without_a_server(scene, tmp_path):
    scene.stop()
    done = subprocess.run(scene.ctl_command(["export", "m", tmp_path / "exported", "--hold"]), env=scene.env,
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and scene.socket in done.stderr and not (tmp_path / "exported").exists()
    scene.start()


def test_save_does_not_replace_what_is_held(scene, export, weights, tmp_path):
    folder = tmp_path / "exported"
    process = export("m")
    done = scene.ctl("save", "-q", "--force", "m", folder, check=False)
    assert done.returncode == 1 and "is in use, by 'weightctl export'" in done.stderr
    assert is_held(folder, weights)
    end(process)
    assert not folder.exists() and [p.name for p in tmp_path.iterdir() if "weightd-" in p.name] == []

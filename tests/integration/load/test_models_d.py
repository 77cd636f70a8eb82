"""weightd-load: files of models.d, and the units that it writes for them. tests/systemd/test_preload.py has them in a booted system."""
import getpass
import subprocess

import pytest
from lib import features
from lib.model_files import write_model


@pytest.fixture
def weightd_load(build):
    features.require("inih")

    def run(*args, env=None):
        return subprocess.run([build / "weightd-load", *args], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return run


def describe(conf, **keys):
    conf.write_text("[model]\n" + "".join(f"{key} = {value}\n" for key, value in keys.items()))
    conf.chmod(0o644)
    return conf


def test_a_file_is_loaded_by_its_user(daemon, weightd_load, build, tmp_path):
    write_model(tmp_path / "model.safetensors")
    conf = describe(tmp_path / "m.conf", path=tmp_path / "model.safetensors", user=getpass.getuser(), name="org/m",
                    options="--mode 0600  --keep 3")
    env = daemon.env | {"PATH": str(build)}
    done = weightd_load(conf, env=env)
    assert done.returncode == 0 and done.stdout.startswith("org/m@1 on host: 2 tensors, "), done.stderr
    assert weightd_load(conf, env=env).stdout == "org/m@1 on host has these tensors and files already\n"
    assert " 0600 " in daemon.ctl("ls", "-n", "-o", "NAME,MODE,SIZE").stdout


def test_help_fits(weightd_load):
    text = weightd_load("--help").stdout
    assert text.startswith("Usage: weightd-load") and [line for line in text.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("text, error", [
    ("[model]\npath = m\nuser = a\n", ":2: 'path' does not take 'm'; it takes a path that begins with /"),
    ("[model]\npath = /m\nuser = -a b\n", ":3: 'user' does not take '-a b'; it takes the name of a user, or a uid"),
    ("[model]\npath = /m\nuser = nobody-like-that\n", ":3: there is no user 'nobody-like-that'; create it, or change 'user'"),
    ("[model]\npath = /m\nuser = 4000000\n", ":3: the unit has another user than '4000000': it is older than this file; run "
     "systemctl daemon-reload, and restart it"),
    ("[modell]\n", ":1: there is no section [modell]; there are only [model]. Is [model] meant?"),
    ("[model]\nuser = a\n", ": [model] has no 'path'; write, say: path = /srv/models/llama-8b"),
])
def test_an_error_names_the_file_and_the_line(weightd_load, tmp_path, text, error):
    conf = tmp_path / "m.conf"
    conf.write_text(text)
    conf.chmod(0o644)
    done = weightd_load(conf)
    assert done.returncode == 2 and f"weightd-load: {conf}{error}\n" in done.stderr, done.stderr


def test_a_unit_for_each_file(weightd_load, tmp_path):
    units = tmp_path / "units"
    units.mkdir()
    good = describe(tmp_path / "a.b-c.conf", path='/srv/a "b" %i \\x', user="alice")
    bad = describe(tmp_path / "bad.conf", user="alice")
    odd = describe(tmp_path / "o d.conf", path="/srv/m", user="alice")
    done = weightd_load("--generate", units, good, bad, odd)
    assert done.returncode == 0 and f"{odd} is ignored: use letters, digits and :_.- for the name of the file" in done.stderr
    found = {str(path.relative_to(units)): str(path.readlink()) if path.is_symlink() else path.read_text()
             for path in units.rglob("*") if path.is_symlink() or path.is_file()}
    head = "# Written by weightd-load-generator.\n[Unit]\nSourcePath="
    assert found == {
        "multi-user.target.wants/weightd-models.target": "../weightd-models.target",
        "weightd-models.target.wants/weightd-load@a.b-c.service": "../weightd-load@.service",
        "weightd-models.target.wants/weightd-load@bad.service": "../weightd-load@.service",
        "weightd-load@bad.service.d/model.conf": f"{head}{bad}\n",
        "weightd-load@a.b-c.service.d/model.conf":
            f"{head}{good}\nDescription=Model weights, loaded as user 'alice' ({good}:3)\n"
            'RequiresMountsFor="/srv/a \\"b\\" %%i \\\\x"\n\n[Service]\nDynamicUser=no\nUser=alice\n',
    }

"""weightd-load@.service and weightd-models.target: models of /etc/weightd/models.d."""
import shutil

import pytest
from integration.examples.pages import literals
from lib import box
from lib.model_files import write_model
from systemd import weights
from systemd.conftest import USERS
from systemd.recipe import commands

MODELS = "/etc/weightd/models.d"
TARGET = "weightd-models.target"
ORDER, = literals("weightd-load.8", "DESCRIPTION")
CONSUMER = f"""{ORDER}[Service]
Type=oneshot
RemainAfterExit=yes
User=bob
ExecStart=weightctl verify m
"""


def unit(name):
    return f"weightd-load@{name}.service"


def describe(root, conf, **keys):
    """Writes the file of a model."""
    (root / MODELS[1:]).mkdir(parents=True, exist_ok=True)
    (root / f"{MODELS[1:]}/{conf}.conf").write_text("[model]\n" + "".join(f"{key} = {value}\n" for key, value in keys.items()))


@pytest.fixture(scope="module")
def booted(installed, tmp_path_factory):
    """A box that boots with a model for bob's service, and files that are wrong."""
    root = tmp_path_factory.mktemp("preload") / "root"
    shutil.copytree(installed, root, symlinks=True)
    (root / "usr/lib/sysusers.d/weightd-test.conf").write_text(USERS)
    (root / "srv").mkdir()
    write_model(root / "srv/model.safetensors")
    describe(root, "m", path="/srv/model.safetensors", user="alice", options="--mode 0644")
    describe(root, "bad", path="srv", users="alice")
    describe(root, "stranger", path="/srv/model.safetensors", user="carol")
    describe(root, "lost", path="/srv/lost.safetensors", user="alice")
    (root / f"{MODELS[1:]}/0-gone.conf").symlink_to("gone.conf")  # the first in the folder
    units = root / "etc/systemd/system"
    units.mkdir(parents=True)
    (units / "consumer.service").write_text(CONSUMER)
    (units / "boot.target").write_text("[Unit]\nRequires=basic.target\nAfter=basic.target\nWants=weightd.socket consumer.service\n")
    with box.Box(root, target="boot.target") as machine:
        yield machine


def log_of(machine, name):
    return [entry["MESSAGE"] for entry in machine.journal(f"UNIT={unit(name)}", "+", f"_SYSTEMD_UNIT={unit(name)}")]


def results(machine, *names):
    return [machine.show(unit(name), "Result") for name in names]


def test_a_boot_loads_the_models_and_reports_files_with_errors(booted):
    assert booted.run("systemctl", "is-active", TARGET, "consumer.service", check=False).stdout.split() == ["active"] * 2, booted.journal_text()
    assert booted.run("weightctl", "verify", "m", user="mallory", check=False).returncode == 1
    assert results(booted, "m", "0-gone", "bad", "stranger", "lost") == ["success"] + ["exit-code"] * 4
    assert TARGET in booted.show("multi-user.target", "Wants").split()

    assert f"cannot read {MODELS}/0-gone.conf: it does not exist" in log_of(booted, "0-gone")
    log = "\n".join(log_of(booted, "bad"))
    assert f"{MODELS}/bad.conf:2: 'path' does not take 'srv'; it takes a path that begins with /\n" in log
    assert f"{MODELS}/bad.conf:3: [model] has no key 'users'; it has path, user, name, device, options. Is 'user' meant?\n" in log
    assert f"{MODELS}/bad.conf: [model] has no 'user'; write, say: user = alice\n" in log
    assert "weightctl: cannot open '/srv/lost.safetensors': No such file or directory" in log_of(booted, "lost")
    log = "\n".join(log_of(booted, "stranger"))
    assert "Failed to determine user credentials: No such process" in log and f"'carol' ({MODELS}/stranger.conf:3)" in log


def add(machine, conf, **keys):
    """A model with a file of its own, loaded while the machine runs."""
    write_model(machine.path(f"/srv/{conf}.safetensors"))
    describe(machine.path("/"), conf, path=f"/srv/{conf}.safetensors", user="alice", **keys)
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", TARGET)


def test_a_model_is_loaded_again_only_if_it_changed(booted):
    add(booted, "again", name="org/again", device="host")
    assert booted.show(unit("again"), "Result") == "success"
    booted.run("systemctl", "reload", unit("again"))
    booted.run("systemctl", "stop", unit("again"))
    booted.run("systemctl", "start", unit("again"))
    assert log_of(booted, "again").count("org/again@1 on host has these tensors and files already") == 2
    write_model(booted.path("/srv/again.safetensors"), seed=2)
    booted.run("systemctl", "reload", unit("again"))
    assert [version["version"] for version in weights.ask(booted, "show", "org/again")["versions"]] == [1, 2]


def test_another_user_needs_a_daemon_reload(booted):
    add(booted, "moved")
    conf = booted.path(f"{MODELS}/moved.conf")
    conf.write_text(conf.read_text().replace("alice", "bob"))
    assert booted.run("systemctl", "restart", unit("moved"), check=False).returncode == 1
    assert f"{MODELS}/moved.conf:3: the unit has another user than 'bob': it is older than this file; run systemctl " \
        "daemon-reload, and restart it" in log_of(booted, "moved")
    conf.unlink()
    booted.run("systemctl", "daemon-reload")
    assert unit("moved") not in booted.show(TARGET, "Wants").split()


def test_the_example_of_the_manual_is_right(booted):
    booted.path("/srv/models/all-MiniLM-L6-v2").mkdir(parents=True)
    write_model(booted.path("/srv/models/all-MiniLM-L6-v2/model.safetensors"))
    load, reload, restart = map(commands, literals("weightd-load.8", "EXAMPLE"))
    for by_root, line in load + reload:
        booted.run("sh", "-c", line, user="root" if by_root else "bob")
    [(_, line)] = restart
    booted.run("sh", "-c", line, check=False)  # files of other tests have errors
    assert results(booted, "minilm") == ["success"]
    assert log_of(booted, "minilm").count("minilm@1 on host has these tensors and files already") == 2
    assert booted.run("weightctl", "verify", "minilm", user="bob").returncode == 0

"""The lines of the README that make weightd a service, run as they are printed, on a system without it."""
import re

import pytest
from lib import box, features
from lib.features import ROOT


@pytest.fixture
def machine():
    """A box with a user that may use sudo."""
    with box.Box() as machine:
        machine.run("useradd", "--create-home", "--shell", "/bin/bash", "reader")
        yield machine


def lines():
    section = re.search(r"^## Install\n(.*?)^## ", (ROOT / "README.md").read_text(), re.M | re.S)[1]
    return re.search(r"^```bash\n(.*?)^```$", section, re.M | re.S)[1]


def let_in(machine, path):
    """Others may enter the folders above, in the box, and read what is below. What they may read already is not copied."""
    for folder in path.parents:
        machine.run("chmod", "o+x", folder)
    machine.run("find", path, "-path", path / "build/torch2", "-prune", "-o", "-path", path / "build/bare", "-prune", "-o",
                "!", "-type", "l", "!", "-perm", "-o=r", "-exec", "chmod", "o+rX", "{}", "+")


def test_the_lines_of_the_readme_make_a_service(machine, programs, model, make, tmp_path):
    features.require("source-tree", f"{ROOT} is on another file system than /, which a box does not have",
                     machine.path(str(ROOT / "Makefile")).exists())
    features.require("default-model", "the model is not in build/model", model == ROOT / "build/model")
    make("all", tmp_path)  # the user of the box may not write here
    let_in(machine, ROOT)
    sudo = machine.path("/usr/local/bin/sudo")
    sudo.write_bytes((programs / "sudo").read_bytes())
    sudo.chmod(0o4755)
    script = f"cd {ROOT}\n{lines()}"
    done = machine.run("env", "USER=reader", "HOME=/home/reader", f"PATH=/usr/local/bin:{box.PATH}",
                       "bash", "-eux", user="reader", input=script, timeout=100)
    assert re.search(r"^minilm@1 on host: 104 tensors", done.stdout, re.M), done.stdout + done.stderr
    assert re.search(r"^minilm +host +1 +ready", done.stdout, re.M), done.stdout + done.stderr
    assert machine.show("weightd.service", "ActiveState") == "active"
    assert machine.run("ps", "-o", "user=", "-C", "weightd").stdout.split() == ["weightd"]

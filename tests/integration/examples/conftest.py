"""Fixtures of the tests that run what README and man pages print."""
import re
import subprocess

import pytest
from integration.examples.pages import MAN, literals
from lib.features import ROOT, require


@pytest.fixture
def line(tmp_path):
    """The trainer in C of weightd-train(7), compiled by the command there."""
    require("library")
    source = literals("weightd-train.7", "EXAMPLE")[0]
    (tmp_path / "line.c").write_text(source)
    command = re.search(r"\*(cc\s+line\.c\s[^*]*-rpath[^*]*)\*", (MAN / "weightd-train.7.scd").read_text())[1]
    command = " ".join(command.split()).replace("line.c", str(tmp_path / "line.c"))
    subprocess.run(["bash", "-c", f"{command} -Wall -Wextra -Werror -o {tmp_path}/line"], cwd=ROOT, check=True)
    return tmp_path / "line"

"""Tests of what this machine's kernel may refuse, in a guest that has another one."""
import os

import features
import guest
import pytest

pytestmark = pytest.mark.timeout(900)  # it is emulated


@pytest.fixture(autouse=True)
def needs():
    features.require("guest")


def test_a_guest_has_another_kernel_and_changes_nothing_here():
    name = f"guest-{os.getpid()}"
    status, wrote = guest.run(["sh", "-c", f"uname -r; ls {features.ROOT}; echo written >{features.ROOT}/{name}; cat {name}; exit 7"])
    assert status == 7 and "README.md" in wrote and "written" in wrote and os.uname().release + "\r\n" not in wrote, wrote
    assert not (features.ROOT / name).exists()

"""Tests of what this machine's kernel may refuse, in a guest that has another one."""
import os
import sys

import features
import guest
import pytest

pytestmark = pytest.mark.timeout(900)  # it is emulated


@pytest.fixture(autouse=True)
def needs():
    features.require("guest")
    features.require("trace")


def test_a_guest_has_another_kernel_and_changes_nothing_here():
    name = f"guest-{os.getpid()}"
    status, wrote = guest.run(["sh", "-c", f"uname -r; ls {features.ROOT}; echo written >{features.ROOT}/{name}; cat {name}; exit 7"])
    assert status == 7 and "README.md" in wrote and "written" in wrote and os.uname().release + "\r\n" not in wrote, wrote
    assert not (features.ROOT / name).exists()


def test_functions_of_the_kernel_are_seen():
    """By programs that tell of descriptors, and of what is mapped."""
    env = {"PYTHONDONTWRITEBYTECODE": 1, "WEIGHTD_BUILD": features.BUILD, "WEIGHTD_LIBRARY": features.LIBRARY,
           "WEIGHTD_REQUIRE": "bpf,fentry,paranoid,root,trace"}
    tests = [features.ROOT / "tests" / name for name in ("bpf/test_passing.py", "unit/test_arrivals.c")]
    status, wrote = guest.run([sys.executable, "-m", "pytest", "-q", "--color=no", *tests], env)
    assert status == 0, wrote

"""Tests of the services that need more of the kernel than this machine has, in a guest that has it."""
import os
import pathlib
import shlex
import sys

import pytest
from lib import box, features, guest
from lib.features import BUILD, LIBRARY

OOM = pathlib.Path(__file__).with_name("test_oom.py")
SPAN_S = 1800
pytestmark = [pytest.mark.timeout(SPAN_S + 60), pytest.mark.plain]  # it is emulated


def test_an_oom_kill_in_a_guest():
    """Where a box of this machine has a memory controller, test_oom.py needs none."""
    controllers = box.CGROUPS / "cgroup.subtree_control"
    if controllers.exists() and "memory" in controllers.read_text().split():
        pytest.skip("boxes have a memory controller here: test_oom.py runs in them")
    if not os.environ.get("WEIGHTD_GUEST_WHOLE"):
        pytest.skip("takes minutes where a processor is emulated: make check-guest")
    features.require("guest")
    env = {"PYTHONDONTWRITEBYTECODE": 1, "WEIGHTD_BUILD": BUILD, "WEIGHTD_LIBRARY": LIBRARY, "WEIGHTD_REQUIRE": "oom,systemd",
           "WEIGHTD_BOX_PATIENCE_S": 600}
    tests = shlex.join([sys.executable, "-m", "pytest", "-q", "--color=no", "-o", f"timeout={SPAN_S}", "-k", "not unit", str(OOM)])
    status, wrote = guest.run(["sh", "-c", f"echo +memory >/sys/fs/cgroup/cgroup.subtree_control && {tests}"], env, timeout=SPAN_S,
                              kernel=guest.NEW)
    assert status == 0 and " passed" in wrote and " skipped" not in wrote, wrote

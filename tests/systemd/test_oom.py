"""
A process of the service that the kernel kills for memory, as it kills weightd-cuda first: the service goes on.

systemd sees that by the memory controller of version 2. Where a box has none, test_guest.py runs these in a guest.
"""
import signal

import pytest
from integration.examples.pages import literals
from lib import box, features
from systemd import recipe, weights
from systemd.weights import SERVICE

SLICE = "weightd.slice"
SIZE = 8 << 20
PATIENT = "[Service]\nWatchdogSec=0\nTimeoutStartSec=infinity\n"  # a guest is slow

# Joins the group $1, makes itself the first choice of the OOM killer, and takes memory until that kills it.
GREEDY = """
echo $$ >/sys/fs/cgroup$1/cgroup.procs
echo 1000 >/proc/self/oom_score_adj
exec python3 -c '
kept = []
while True:
    kept.append(bytearray(b"x" * (1 << 20)))
'
"""


def files_of_the_page():
    """{path: text} of weightd(8), MEMORY, with a limit that a test reaches soon."""
    [block] = literals("weightd.8", "MEMORY")
    assert "MemoryMax=127G\n" in block
    return recipe.files(block.replace("=127G", "=128M"))


@pytest.fixture
def controller():
    controllers = (box.hierarchies()[-1] / "cgroup.subtree_control").read_text().split()
    features.require("oom", "a box has no memory controller of version 2 here", "memory" in controllers)


@pytest.fixture
def limited(controller, own_service):
    """The service in a slice of its own, with a limit of its memory and a version."""
    service = own_service
    for path, text in files_of_the_page().items():
        service.path(path).parent.mkdir(exist_ok=True)
        service.path(path).write_text(text)
    service.drop_in(SERVICE, PATIENT)
    service.run("systemctl", "start", SERVICE)
    weights.load(service, "kept", SIZE, seed=1)
    return service


def kill_one(box):
    with box.expect(f"{SERVICE}: A process of this unit has been killed by the OOM killer"):
        assert box.run("sh", "-c", GREEDY, "sh", box.show(SERVICE, "ControlGroup"), check=False).returncode == -signal.SIGKILL


def charged(box, unit):
    return int(box.show(unit, "MemoryCurrent"))


def test_the_unit_goes_on_and_comes_first(service):
    assert [service.show(SERVICE, key) for key in ("OOMPolicy", "CPUWeight")] == ["continue", "1000"]


def test_weightd_outlives_a_process_of_its_service(limited):
    before, shown = weights.main_pid(limited), weights.show(limited)
    kill_one(limited)
    assert (limited.show(SERVICE, "ActiveState"), weights.main_pid(limited)) == ("active", before)
    assert weights.lasting(weights.show(limited)) == weights.lasting(shown)


def test_systemd_s_default_would_end_weightd(limited):
    before = weights.main_pid(limited)
    limited.drop_in(SERVICE, f"{PATIENT}OOMPolicy=stop\n")
    with limited.expect(f"{SERVICE}: Failed with result 'oom-kill'(?s:.*)Started {SERVICE}"):
        kill_one(limited)
    assert weights.main_pid(limited) != before


def test_the_slice_counts_weights_of_an_earlier_weightd_and_the_service_does_not(limited):
    """A limit of the service alone would count less than there is."""
    assert charged(limited, SERVICE) >= SIZE
    for command in ("kill", "-KILL", weights.main_pid(limited)), ("systemctl", "restart", SERVICE):
        before = weights.main_pid(limited)
        with limited.expect(f"Started {SERVICE}"):
            limited.run(*command)
        assert weights.main_pid(limited) != before and weights.names(limited) == ["kept"]
        assert charged(limited, SERVICE) < SIZE <= charged(limited, SLICE)

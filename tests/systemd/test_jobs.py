"""Jobs survive restarts of the service under a rank that goes on, and deaths of the rank."""
import errno

import pytest
from lib import earlier
from systemd import weights
from systemd.crowd import Program
from systemd.test_survival import WAYS
from systemd.test_upgrade import put, upgrade
from systemd.weights import SERVICE

ROUNDS = 2


class Rank(Program):
    """programs/rank.c"""

    def __init__(self, box, user="alice"):
        super().__init__(box, "rank", "train", f"/home/{user}/token", user=user)
        self.box = box
        self.n, result = self.answer()
        assert result == 0

    def go_on(self):
        """A step. The result of the look at the server."""
        n, result = self.ask()
        assert n == self.n + 1
        self.n = n
        return result

    def go_on_with_the_server(self):
        """Until it has joined again, as the server shows. Its job."""
        for _ in range(10000):
            result = self.go_on()
            assert result in (0, -errno.ENOTCONN), result
            if result == 0 and (job := jobs(self.box)[0])["present"] == 1:
                assert job["step"] == self.n
                return job
        raise AssertionError(f"the rank does not find the server again\n{self.said()}")


def jobs(box):
    return weights.ask(box, "ls")["jobs"]


def with_home(box):
    box.run("install", "-d", "-o", "alice", "/home/alice")
    return box


@pytest.fixture
def home(service):
    return with_home(service)


@pytest.mark.parametrize("way", ["killed", "restart", "daemon-reexec", "replaced"])
def test_jobs_outlive(way, home):
    rank = Rank(home)
    before = rank.go_on_with_the_server()
    kept = weights.kept(home)
    for _ in range(ROUNDS):
        WAYS[way].happens(home)
        assert rank.go_on_with_the_server()["created"] == before["created"]
        assert weights.kept(home) == kept
    rank.kill()
    n = rank.n
    WAYS[way].happens(home)
    rank = Rank(home)
    assert rank.n == n
    rank.go_on_with_the_server()
    home.run("weightctl", "rm", "train")
    rank.kill()
    weights.wait_for_kept(home, 0)


def test_jobs_outlive_the_way_to_the_release_before_and_back(own_service):
    earlier.require()
    home = with_home(own_service)
    rank = Rank(home)
    rank.go_on_with_the_server()
    kept = weights.kept(home)
    put(home, earlier.BUILD)
    with home.expect("belongs to no served buffer"):
        home.run("systemctl", "restart", SERVICE)
    assert weights.kept(home) == kept
    assert rank.go_on() != 0, "the memory is there, and the server does not know it"
    upgrade(home)
    rank.go_on_with_the_server()
    assert weights.kept(home) == kept and jobs(home)[0]["step"] == rank.n

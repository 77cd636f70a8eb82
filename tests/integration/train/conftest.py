"""Fixtures of the tests that train: a weightd that outlives its own death, jobs on it, and the curve to compare with."""
import itertools

import pytest
from lib import features, trainer
from lib.daemon import Daemon
from lib.torch_ranks import Host

ROWS = [("shared", "fused"), ("shared", "two-phase"), ("zero1", "fused"), ("zero1", "two-phase"), ("replicated", "two-phase")]


def crossed(*axes, stays):
    """The product of the axes, for parametrize(). Variants are long but for those whose values `stays` takes."""
    return [pytest.param(*values, marks=() if stays(*values) else pytest.mark.long) for values in itertools.product(*axes)]


@pytest.fixture
def keeper(make_daemon):
    """A weightd under a keeper, which starts it anew when it dies."""
    features.require("refs")
    return make_daemon("--keeper")


@pytest.fixture
def make_job(keeper, tmp_path):
    """make_job(n=2, strategy="zero1"): a Job; its processes end with the test."""
    made, numbers = [], itertools.count()

    def make(n, **options):
        made.append(trainer.Job(keeper, tmp_path / f"{next(numbers)}", n, **options))
        return made[-1]

    yield make
    for job in made:
        job.close()


@pytest.fixture
def make_nodes(keeper, tmp_path):
    """make_nodes(nodes=2, n=2, strategy="zero1"): Nodes; their processes end with the test."""
    features.require("train-gloo")
    made, numbers = [], itertools.count()

    def make(nodes=2, n=2, **options):
        made.append(trainer.Nodes(options.pop("daemons", keeper), tmp_path / f"nodes-{next(numbers)}", nodes, n, **options))
        return made[-1]

    yield make
    for nodes in made:
        nodes.close()


@pytest.fixture(scope="session")
def oracle(tmp_path_factory):
    """oracle(steps=60): the curve and the parameters of a single process."""
    features.require("refs")
    folder = tmp_path_factory.mktemp("oracle")
    return lambda **options: trainer.oracle(folder, **options)


@pytest.fixture(scope="session")
def host():
    """A program that forks ranks with torch 2."""
    features.require("library")
    features.require("torch2")
    host = Host()
    yield host
    host.close()


@pytest.fixture(scope="module")
def module_daemon():
    """A weightd for what the tests of a file share."""
    features.require("library")
    daemon = Daemon()
    yield daemon
    daemon.close()

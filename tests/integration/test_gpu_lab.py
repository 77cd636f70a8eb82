"""The agents, daemons and waits of tests/gpu/run, on the fake GPU."""
import features
import lab as of_lab
import pytest
from gpus import Gpus

CU_NOT_SUPPORTED = 801


@pytest.fixture
def gpus(require, monkeypatch):
    require("fakes")
    require("gpu-programs")
    made = Gpus(memory="512M")
    for name, value in made.env.items():
        monkeypatch.setenv(name, value)
    yield made
    made.close()


@pytest.fixture
def lab(gpus):
    made = of_lab.Lab(features.BUILD)
    yield made
    made.close()


def test_a_driver_without_read_only_mappings_shares_by_handles(gpus, lab):
    path = lab.folder / "vmm"
    with lab.agents(2) as (maker, reader):
        maker.run(f"vmm-make 2 {2 << 20} {path}")
        maker.send("vmm-serve")
        gpus.fail("cuMemSetAccess", CU_NOT_SUPPORTED, 0, 1)
        assert reader.run(f"vmm-time 2 {2 << 20} {path}")["n"] == 2
        maker.answer()
    assert gpus.has_failed()


def test_a_keeper_between_two_daemons_is_waited_for(lab, monkeypatch):
    with lab.weightd(keeper=True) as weightd:
        ours, killed = weightd.pid, []
        pids = iter([0, 0, ours, 0, ours, 0, 7])
        with monkeypatch.context() as patch:
            patch.setattr(of_lab.Weightd, "pid", property(lambda self: next(pids)))
            patch.setattr(of_lab.Weightd, "allocators", [])
            patch.setattr(of_lab.os, "kill", lambda pid, _signal: killed.append(pid))
            weightd.kill()
        assert killed == [ours] and list(pids) == []

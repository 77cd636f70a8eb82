"""The agents, daemons and waits of tests/gpu/run, on the fake GPU."""
import os
import pathlib
import zipfile

import lab as of_lab
import pytest
import section_load
from lib import features
from lib.gpus import Gpus
from results import Results, Section, Skip

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


class Busy:
    """A GPU with this much free memory."""

    def __init__(self, free):
        self.bytes = free

    def free(self):
        return self.bytes


def test_a_driver_without_read_only_mappings_shares_by_handles(gpus, lab):
    path = lab.folder / "vmm"
    with lab.agents(2) as (maker, reader):
        maker.run(f"vmm-make 2 {2 << 20} {path}")
        maker.send("vmm-serve")
        gpus.fail("cuMemSetAccess", CU_NOT_SUPPORTED, 0, 1)
        assert reader.run(f"vmm-time 2 {2 << 20} {path}")["n"] == 2
        maker.answer()
    assert gpus.has_failed()


def test_a_dead_agent_is_named_with_the_last_line_of_its_log(lab):
    with lab.agents(1) as (agent,):
        os.kill(agent.pid, 9)
        for _ in range(2):  # a missing answer, then a failed write
            with pytest.raises(of_lab.AgentFailed, match=r"^info: the agent died of SIGKILL: its log is empty$"):
                agent.run("info")
    lab.env |= {"WEIGHTD_SOCKET": str(lab.folder / "none")}
    with pytest.raises(of_lab.AgentFailed, match=r"^open 0: the agent ended with 1: agent: .*/none"):
        with lab.agents(1):
            pass


def test_nothing_waits_for_a_dead_weightd(lab):
    with pytest.raises(of_lab.Died, match="^weightd died of SIGKILL: "), lab.weightd() as weightd:
        weightd.kill()
        lab.wait_for(lambda: False, "never")


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


def test_others_may_take_a_little_of_the_gpu(lab, monkeypatch):
    monkeypatch.setattr(of_lab, "DEADLINE_S", 0)
    assert lab.wait_free(Busy(1000 * of_lab.MIB), 1032 * of_lab.MIB, "x") == 1000 * of_lab.MIB
    with pytest.raises(TimeoutError, match=f"x: {999 * of_lab.MIB} bytes are free, not {1032 * of_lab.MIB}, of which others may take"):
        lab.wait_free(Busy(999 * of_lab.MIB), 1032 * of_lab.MIB, "x")


def test_wheels_of_a_pack_are_unpacked(tmp_path, lab):
    lab.build = tmp_path
    section_load.unpack(lab)
    assert lab.wheels == []
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / "wheels/other-1-py3-none-any.whl", "w") as z:
        z.writestr("other/__init__.py", "")
    section_load.unpack(lab)
    assert [(folder / "other/__init__.py").exists() for folder in lab.wheels] == [True]


def test_each_part_ends_alone(tmp_path, capsys):
    results = Results(tmp_path / "results/x.jsonl")
    tell = Section(results, "s")
    with tell.part("whole"):
        with tell.part("skipped"):
            raise Skip("no luck")
        with tell.part("failed"):
            raise EOFError
        tell("measured", 1, ok=True)
        raise ValueError("late")
    results.close()
    assert [(line["name"], line["ok"], line.get("why")) for line in results.lines] == [
        ("skipped", None, "no luck"), ("failed", False, "EOFError: in raise EOFError"), ("measured", True, None),
        ("whole", False, "ValueError: late")]
    assert capsys.readouterr().out == pathlib.Path(results.path).read_text()

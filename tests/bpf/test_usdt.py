"""weightd's own probes: what its program says of them, and what is told by them."""
import features
import notes
import platform
import pytest

REGISTERS = {"x86_64": ["%rdi", "%rsi", "%rdx", "%rcx", "%r8", "%r9"],
             "aarch64": [f"x{n}" for n in range(6)]}
ARGUMENTS = {"attach": 6, "detach": 6, "publish": 6, "flip": 4, "quiesce": 6}


@pytest.fixture(scope="module")
def probes():
    features.require("sdt")
    return notes.probes(features.BUILD / "weightd")


def test_each_probe_has_its_arguments_where_a_tracer_expects_them(probes):
    registers = REGISTERS[platform.machine()]
    assert {name: p["arguments"] for name, p in probes.items()} == \
        {name: " ".join(f"8@{r}" for r in registers[:n]) for name, n in ARGUMENTS.items()}


def test_each_probe_has_a_semaphore_of_its_own_which_is_in_the_file(probes):
    program = (features.BUILD / "weightd").read_bytes()
    places = {p["semaphore"] for p in probes.values()}
    assert len(places) == len(ARGUMENTS) and all(place % 2 == 0 for place in places), probes
    assert {program[place:place + 2] for place in places} == {b"\0\0"}

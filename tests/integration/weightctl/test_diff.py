"""weightctl diff: versions and files, tensor by tensor."""
import array
import json
import struct

import pytest
from integration.weightctl.test_weightctl import HOSTILE, UNPRINTABLE, ctl_json, write_safetensors

VALUES = [float(i) for i in range(64)]


def floats(values):
    return array.array("f", values).tobytes()


def bf16(values):
    return b"".join(struct.pack("<f", v)[2:] for v in values)


BASE = [("w", "F32", [8, 8], floats(VALUES)), ("b", "BF16", [4], bf16([1, 2, 3, 4])),
        ("i", "I32", [2], array.array("i", [-5, 7]).tobytes()), ("s", "F16", [], struct.pack("<e", 1.5))]


def changed(name, *entry):
    """BASE with another entry of that name; without an entry, less it."""
    return [(name, *entry) if t[0] == name else t for t in BASE if t[0] != name or entry]


@pytest.fixture
def m(daemon, tmp_path):
    daemon.ctl("load", "-q", "m", write_safetensors(tmp_path / "base.safetensors", BASE))
    return daemon


def diff(daemon, *args):
    """(exit status, the JSON)."""
    done = daemon.ctl("diff", "--json", *args, check=False)
    return done.returncode, json.loads(done.stdout)


def differences(daemon, *args):
    status, found = diff(daemon, *args)
    assert (status, found["equal"]) == (1, False)
    assert found["different"] == len(found["differences"])
    return {d.pop("name"): d for d in found["differences"]}


def file_with(tmp_path, tensors):
    return write_safetensors(tmp_path / "other.safetensors", tensors)


def test_a_version_equals_itself_and_its_file(m, tmp_path):
    done = m.ctl("diff", "m", tmp_path / "base.safetensors")
    assert done.stdout == f"m@1 and {tmp_path}/base.safetensors are equal: 4 tensors, 274 B\n"
    status, found = diff(m, "m", "m@1")
    assert status == 0
    assert found == {"first": {"name": "m", "device": "host", "version": 1},
                     "second": {"name": "m", "device": "host", "version": 1}, "differences": [], "equal": True,
                     "tensors": 4, "different": 0, "size": 274}


def test_order_and_place_do_not_matter(m, tmp_path):
    m.ctl("load", "-q", "--exclusive", "other", file_with(tmp_path, BASE[::-1]))
    assert m.ctl("diff", "-q", "m", "other").stdout == ""


def test_an_index_and_a_directory_are_read_as_load_does(m, tmp_path):
    m.ctl("save", "-q", "--shard-size", "200", "m", tmp_path / "out")
    assert diff(m, "m", tmp_path / "out")[0] == 0
    assert diff(m, tmp_path / "out/model.safetensors.index.json", "m")[0] == 0


def test_names_types_and_shapes(m, tmp_path):
    other = [("w", "F32", [64], floats(VALUES)), ("b", "F16", [4], bf16([1, 2, 3, 4])), BASE[3], ("new", "U8", [1], b"x")]
    found = differences(m, "m", file_with(tmp_path, other))
    assert found == {
        "w": {"difference": "shape", "first": {"dtype": "F32", "shape": [8, 8]},
              "second": {"dtype": "F32", "shape": [64]}},
        "b": {"difference": "type", "first": {"dtype": "BF16", "shape": [4]}, "second": {"dtype": "F16", "shape": [4]}},
        "i": {"difference": "only-first", "first": {"dtype": "I32", "shape": [2]}, "second": None},
        "new": {"difference": "only-second", "first": None, "second": {"dtype": "U8", "shape": [1]}}}
    said = m.ctl("diff", "m", tmp_path / "other.safetensors", check=False).stdout.splitlines()
    assert sorted(said) == sorted(["w: F32 [8, 8] and F32 [64]", "b: BF16 [4] and F16 [4]", "i: only in m@1",
                                   f"new: only in {tmp_path}/other.safetensors",
                                   f"m@1 and {tmp_path}/other.safetensors: 4 of 5 tensors differ"])


@pytest.mark.parametrize("name, entry, n, of, by", [
    ("w", ("F32", [8, 8], floats([v + 0.25 * (i % 9 == 0) for i, v in enumerate(VALUES)])), 8, 64, 0.25),
    ("w", ("F32", [8, 8], floats(VALUES[:-1] + [1e30])), 1, 64, 1e30),
    ("b", ("BF16", [4], bf16([1, 2, 3, 8])), 1, 4, 4),
    ("b", ("BF16", [4], bf16([-1, -2, 3, 4])), 2, 4, 4),
    ("i", ("I32", [2], array.array("i", [5, 7]).tobytes()), 1, 2, 10),
    ("s", ("F16", [], struct.pack("<e", -0.5)), 1, 1, 2)])
def test_bytes(m, tmp_path, name, entry, n, of, by):
    found = differences(m, "m", file_with(tmp_path, changed(name, *entry)))
    assert list(found) == [name]
    d = found[name]
    assert (d["difference"], d["different"], d["elements"], d["unmeasured"]) == ("bytes", n, of, 0)
    assert d["max_abs"] == pytest.approx(by, rel=1e-5)


def test_nan_and_infinity_have_no_difference(m, tmp_path):
    values = [float("nan"), float("inf"), *VALUES[2:]]
    found = differences(m, "m", file_with(tmp_path, changed("w", "F32", [8, 8], floats(values))))
    assert (found["w"]["different"], found["w"]["unmeasured"], found["w"]["max_abs"]) == (2, 2, None)
    said = m.ctl("diff", "m", tmp_path / "other.safetensors", check=False).stdout
    assert said.startswith("w: 2 of 64 elements differ, 2 of them without a finite difference\n")


def test_bits_count_and_not_values(m, tmp_path):
    found = differences(m, "m", file_with(tmp_path, changed("w", "F32", [8, 8], floats([-0.0, *VALUES[1:]]))))
    assert (found["w"]["different"], found["w"]["max_abs"]) == (1, 0)


def test_a_difference_behind_many_equal_bytes_is_found(daemon, tmp_path):
    data = bytes(7 << 20)
    a = write_safetensors(tmp_path / "a.safetensors", [("w", "U8", [len(data)], data)])
    b = write_safetensors(tmp_path / "b.safetensors", [("w", "U8", [len(data)], data[:-1] + b"\3")])
    found = differences(daemon, a, b)
    assert (found["w"]["different"], found["w"]["elements"], found["w"]["max_abs"]) == (1, len(data), 3)


def test_two_paths_need_no_server(daemon, tmp_path):
    a = write_safetensors(tmp_path / "a.safetensors", BASE)
    b = write_safetensors(tmp_path / "b.safetensors", BASE[:3])
    daemon.stop()
    done = daemon.ctl("diff", a, b, check=False)
    assert done.returncode == 1 and done.stdout.startswith("s: only in ")
    assert daemon.ctl("diff", "-q", a, a).stdout == ""
    daemon.start()


def test_a_version_on_a_gpu(make_daemon, gpu, tmp_path):
    daemon = make_daemon(env=gpu.env)
    daemon.ctl("load", "-q", "--device", "cuda:0", "m", write_safetensors(tmp_path / "base.safetensors", BASE))
    assert diff(daemon, "--device", "cuda:0", "m", tmp_path / "base.safetensors")[0] == 0
    other = file_with(tmp_path, changed("b", "BF16", [4], bf16([1, 2, 3, 8])))
    assert list(differences(daemon, "--device", "cuda:0", "m", other)) == ["b"]


TIED = """
import weightd
layout = weightd.Layout()
layout.add("embed", "F32", (4,))
layout.tie("head", "embed")
with weightd.create("tied", layout) as w:
    w["embed"].write(b"0123456789abcdef")
    w.publish()
"""


def test_ties_are_no_difference_if_a_tied_name_is_in_both(daemon, python, tmp_path):
    python(TIED)
    data = b"0123456789abcdef"
    for names, wanted in ((["embed"], {}), (["head"], {}), (["embed", "head"], {}), (["other"], {"embed", "head", "other"})):
        file = file_with(tmp_path, [(n, "F32", [4], data) for n in names])
        status, found = diff(daemon, "tied", file)
        assert {d["name"] for d in found["differences"]} == set(wanted)
        assert status == bool(wanted)
        assert diff(daemon, file, "tied")[0] == status
    file = file_with(tmp_path, [("embed", "F32", [4], data), ("head", "F32", [4], data[::-1])])
    assert list(differences(daemon, "tied", file)) == ["head"]


def test_hostile_names_are_escaped(daemon, tmp_path):
    a = write_safetensors(tmp_path / "a.safetensors", [(HOSTILE, "U8", [1], b"a")])
    b = write_safetensors(tmp_path / "b.safetensors", [(HOSTILE, "U8", [1], b"b")])
    said = daemon.ctl("diff", a, b, check=False).stdout
    assert "1 of 1 elements differ, by 1 at most" in said and not UNPRINTABLE.search(said)
    assert list(differences(daemon, a, b)) == [HOSTILE]


@pytest.mark.parametrize("args, why", [(("m", "nix"), "no buffer 'nix'"), (("nix", "m"), "no buffer 'nix'"),
                                       (("m", "./nix"), "cannot open './nix'"), (("m",), "two names"),
                                       (("m", "m@9"), "9"), (("m", "m", "m"), "two names")])
def test_trouble_is_2(m, args, why):
    done = m.ctl("diff", *args, check=False)
    assert done.returncode == 2 and why in done.stderr


def test_trouble_in_json_says_that_nothing_is_known(m):
    status, found = diff(m, "m", "./nix")
    assert (status, found["equal"]) == (2, None)


def test_no_server_is_trouble(m):
    m.stop()
    assert m.ctl("diff", "m", "m", check=False).returncode == 2
    m.start()


def test_a_broken_file_is_trouble(m, tmp_path):
    (tmp_path / "broken.safetensors").write_bytes(b"broken")
    done = m.ctl("diff", "m", tmp_path / "broken.safetensors", check=False)
    assert done.returncode == 2 and "it is text that begins with 'broken'" in done.stderr


def test_show_and_diff_agree_on_versions(m, tmp_path):
    m.ctl("load", "-q", "m", file_with(tmp_path, changed("s", "F16", [], struct.pack("<e", 2.5))))
    assert differences(m, "m@1", "m@2")["s"]["max_abs"] == 1
    assert ctl_json(m, "show", "m")["version"] == 2


def test_a_path_that_looks_like_a_name_is_pointed_out(m, tmp_path):
    write_safetensors(tmp_path / "there", BASE)
    done = m.ctl("diff", "m", "there", check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert "there is no buffer 'there'" in done.stderr and "'./there' names that" in done.stderr
    assert m.ctl("diff", "m", "./there", cwd=tmp_path).returncode == 0
    assert "names that" not in m.ctl("diff", "m", "nowhere", check=False, cwd=tmp_path).stderr

"""weightctl files, cat --file and the attributes in show: also text that would disturb a terminal."""
import json
import os
import pty
import struct
import subprocess

import pytest
from lib.model_files import write_model

HOSTILE = "é\x1b[31m\n\ttab\x00end\n"


@pytest.fixture
def loaded(daemon, tmp_path):
    """m@1 with two files, m@2 with one; plain has none."""
    text = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    weights = tmp_path / "model/model.safetensors"
    weights.parent.mkdir()
    weights.write_bytes(struct.pack("<Q", len(text)) + text + bytes(4))
    (tmp_path / "model/config.json").write_text("{}")
    (tmp_path / "model/notes.txt").write_text(HOSTILE)
    daemon.ctl("load", "m", str(weights.parent), "--attribute", "note=\x1b[31mred")
    (tmp_path / "model/notes.txt").unlink()
    daemon.ctl("load", "m", str(weights.parent))
    return daemon


def test_table_has_paths_and_sizes(loaded):
    assert [line.split() for line in loaded.ctl("files", "m@1", "--bytes").stdout.splitlines()] == [
        ["PATH", "SIZE"], ["config.json", "2"], ["notes.txt", str(len(HOSTILE.encode()))]]
    assert loaded.ctl("files", "m", "--noheadings", "-o", "PATH").stdout == "config.json\n"


def test_json_names_the_version(loaded):
    listed = json.loads(loaded.ctl("files", "m", "--json").stdout)
    assert (listed["name"], listed["device"], listed["version"]) == ("m", "host", 2)
    assert listed["files"] == [{"path": "config.json", "size": 2}]
    assert listed["attributes"]["dtype"] == "F32"
    assert json.loads(loaded.ctl("files", "m@1", "--json").stdout)["attributes"]["note"] == "\x1b[31mred"


def test_show_escapes_attributes(loaded):
    loaded.ctl("rollback", "m", "1")
    shown = loaded.ctl("show", "m").stdout
    assert "\x1b" not in shown and "note     \\x1b[31mred\n" in shown


def test_cat_writes_the_bytes_and_escapes_them_on_a_terminal(loaded):
    assert loaded.ctl("cat", "m@1", "--file", "notes.txt").stdout == HOSTILE
    master, slave = pty.openpty()
    try:
        assert loaded.spawn("cat", "m@1", "--file", "notes.txt", stdout=slave).wait(60) == 0
        assert os.read(master, 4096).decode() in ("é\\x1b[31m\r\n\ttab\\x00end\r\n",  # by the locale
                                                  "\\xc3\\xa9\\x1b[31m\r\n\ttab\\x00end\r\n")
    finally:
        os.close(master)
        os.close(slave)


@pytest.mark.parametrize("args, said", [
    (("cat", "m@1", "--file", "config.jso"), "m@1 has no file 'config.jso'; is it 'config.json'?"),
    (("cat", "m", "--file", "xyz"), "m@2 has no file 'xyz'; 'weightctl files m' lists those it has"),
    (("files", "n"), "there is no buffer 'n' on host"), (("files", "m@7"), "m"),
    (("cat", "m", "--file", "../x"), "m@2 has no file '../x'")])
def test_absent_files_are_named(loaded, args, said):
    done = loaded.ctl(*args, check=False)
    assert done.returncode == 1 and said in done.stderr and done.stdout == "", done.stderr


@pytest.mark.parametrize("args", [("files",), ("files", "m", "n"), ("cat", "m"), ("cat", "m", "w", "--file", "x"),
                                  ("cat", "--file", "x"), ("load", "m", "x", "--attribute", "y")])
def test_wrong_arguments_are_a_usage_error(daemon, args):
    assert daemon.ctl(*args, check=False).returncode == 2


def test_a_version_without_files_is_told_on_a_terminal(daemon, tmp_path):
    write_model(tmp_path / "bare.safetensors")
    daemon.ctl("load", "-q", "bare", tmp_path / "bare.safetensors")
    assert daemon.ctl("files", "bare").stderr == ""
    ours, theirs = os.openpty()
    done = subprocess.run(daemon.ctl_command(["files", "bare"]), env=daemon.env, stdin=subprocess.DEVNULL, stdout=theirs,
                          stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(theirs)
    os.close(ours)
    assert (done.returncode, done.stderr) == (0, "bare@1 has no files beside its weights\n")

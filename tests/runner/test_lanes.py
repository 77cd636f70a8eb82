"""tests/lanes: runs all files whatever one of them does, and sums up once."""
import os
import re
import subprocess
import sys

import pytest
from lib.features import ROOT
from runner import jobs
from runner.marks import is_chosen

CONFTEST = f"""
import sys
sys.path.insert(0, {str(ROOT / "tests")!r})
from runner.outcomes import pytest_configure
from runner.shuffle import pytest_collection_modifyitems
"""


@pytest.fixture
def lanes(tmp_path):
    """lanes({name: text}): the exit status and the output of a run on files of these texts."""
    def run(files, of="lint", **env):
        (tmp_path / "conftest.py").write_text(CONFTEST)
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        done = subprocess.run([ROOT / "tests/lanes", of, tmp_path], text=True, env=os.environ | env, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        return done.returncode, done.stdout
    return run


def test_files_run_whatever_one_of_them_does(lanes):
    status, out = lanes({"test_a.py": "def test_fails(): assert 1 == 2", "test_b.py": "import nothing_of_that_name",
                         "test_c.py": "def test_passes(): pass"})
    assert status == 1 and out.endswith("\n1 passed, 2 failed, 0 skipped\n"), out


def test_a_pytest_that_dies_counts_as_a_failure(lanes):
    status, out = lanes({"test_a.py": "import os\ndef test_passes(): pass\ndef test_dies(): os._exit(0)"})
    assert status == 1 and out.endswith("\n1 passed, 1 failed, 0 skipped\n"), out
    assert "pytest ended during this test with 0" in out, out


def test_a_failure_has_the_command_that_runs_it_again(lanes):
    _, out = lanes({"test_a.py": "import pytest\n@pytest.mark.parametrize('x', ['a $b'])\ndef test_fails(x): assert 0"})
    words = re.search(r"^    (make pytest ARGS=.*)$", out, re.M)[1].replace("make pytest", "make --no-print-directory pytest")
    done = subprocess.run(words, shell=True, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert "1 failed" in done.stdout, done.stdout


@pytest.mark.parametrize("value", ["tests/a.py::test[zero1-fused]", "a b", "a $b", "it's", 'a"b', "a!", "a`b\\", "(a;b)", "*"])
def test_the_shells_and_make_pass_any_name_on(value, tmp_path):
    (tmp_path / "Makefile").write_text("pytest:\n\t@printf '%s\\n' $(ARGS)\n")
    command = jobs.again("build", value)
    done = subprocess.run(["bash", "-c", command.replace("make", f"make --no-print-directory -C {tmp_path}")], stdout=subprocess.PIPE, text=True)
    assert done.stdout == f"{value}\n", command


@pytest.mark.parametrize("node, shown", [("tests/a.py::test_x", "tests/a.py::test_x"), ("tests/a.py::test_x[b-1.5]", "'tests/a.py::test_x[b-1.5]'"),
                                         ("tests/a.py::test_x[b c]", "\"'tests/a.py::test_x[b c]'\"")])
def test_the_command_has_no_more_quotes_than_it_needs(node, shown):
    assert jobs.again("build-address", node, {"WEIGHTD_KILLS": "1"}) == f"WEIGHTD_KILLS=1 make SAN=address pytest ARGS={shown}"


def test_a_long_collection_shows_that_it_goes_on(tmp_path, monkeypatch, capsys):
    """The file that is collected waits until the line is there."""
    monkeypatch.setattr(jobs, "PROGRESS_S", 0.1)
    seen = tmp_path / "seen"
    os.mkfifo(seen)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_a.py").write_text(f"open({str(seen)!r}).read()\ndef test_passes(): pass")
    monkeypatch.setattr("builtins.print", lambda *line, **_: (monkeypatch.undo(), seen.write_text("x"), print(*line)))
    found = jobs.collect("build", [tmp_path], str(tmp_path))
    assert found == {f"{tmp_path}/test_a.py": [[]]}
    assert "s, collecting the tests\n" in capsys.readouterr().out


def test_each_file_belongs_to_a_lane():
    """LANE= chooses it by that."""
    files = [str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*") if path.suffix in (".c", ".py")]
    assert len(files) > 100 and [path for path in files if jobs.lane_of(path) == "others"] == []


def test_a_failure_of_a_teardown_counts_once(lanes):
    status, out = lanes({"test_a.py": "import pytest\n@pytest.fixture\ndef f():\n    yield\n    assert 0\ndef test_x(f): pass"})
    assert status == 1 and out.endswith("\n0 passed, 1 failed, 0 skipped\n"), out


def test_files_share_a_process_unless_a_processor_would_have_nothing_to_do(lanes):
    status, out = lanes({f"test_{name}.py": "def test_passes(): pass" for name in "abcdefgh"})
    n_jobs, n_cpus = int(re.search(r"^lanes: (\d+) jobs in ", out, re.M)[1]), os.cpu_count()
    assert status == 0 and min(8, n_cpus) <= n_jobs and (n_jobs < 8 or n_cpus > 4), out


def test_a_long_failure_begins_with_its_first_line(lanes):
    _, out = lanes({"test_a.py": "def test_fails():\n    story = '\\n'.join(map(str, range(1000)))\n    assert 0, f'it hangs\\n{story}'"})
    lines = [line.split() for line in out.splitlines()]
    what = ["AssertionError:", "it", "hangs"]
    assert ["E", *what] in lines and lines.index(["E", *what]) < lines.index(["E", "999"]) and ["E", "500"] not in lines, out
    assert any(line[1:] == what for line in lines[lines.index(["E", "999"]):]), out


def test_skips_are_grouped_by_reason(lanes):
    skip = "import pytest\n@pytest.mark.parametrize('x', range({}))\ndef test_skips(x): pytest.skip('no {}')"
    status, out = lanes({"test_a.py": skip.format(2, "GPU"), "test_b.py": skip.format(3, "GPU"), "test_c.py": skip.format(1, "NIC")})
    assert status == 0 and "\n    5  no GPU\n    1  no NIC\n" in out, out
    assert out.endswith("\n0 passed, 0 failed, 6 skipped\n"), out


def test_sanitized_tests_wait_for_their_tree_and_plain_ones_do_not(lanes, tmp_path):
    """The build here waits for the plain test, which would wait for ever if it ran behind it; and makes what the sanitized one needs."""
    text = f"""
import os, pathlib
def test_a():
    folder = pathlib.Path({str(tmp_path)!r})
    if os.environ["WEIGHTD_BUILD"].endswith("/build"):
        with open(folder / "pipe", "w") as pipe:
            pipe.write("plain")
    else:
        assert (folder / "built").read_text() == "plain"
"""
    os.mkfifo(tmp_path / "pipe")
    status, out = lanes({"test_a.py": text}, "all", WEIGHTD_SAN_BUILD=f"cat {tmp_path}/pipe >{tmp_path}/built")
    assert status == 0 and out.endswith("\n2 passed, 0 failed, 0 skipped\n"), out


def test_a_build_that_fails_leaves_its_tests_failed_and_says_why(lanes):
    status, out = lanes({"test_a.py": "def test_passes(): pass"}, "all", WEIGHTD_SAN_BUILD="echo no such header; exit 3")
    assert status == 1 and out.endswith("\n1 passed, 1 failed, 0 skipped\n"), out
    assert "exit 3' ended with 3:\nno such header\n" in out and "did not run" in out, out


def test_probes_wait_for_what_they_see_and_run_beside_what_they_do_not(lanes, tmp_path):
    """Each of the two ends of a pipe waits for the other."""
    os.mkfifo(tmp_path / "pipe")
    test = f"import pathlib, pytest\nfolder = pathlib.Path({str(tmp_path)!r})\n@pytest.mark.{{}}\ndef test_x():\n    {{}}".format
    status, out = lanes({
        "test_seen.py": test("threads", "(folder / 'over').touch()"),
        "tests/lint/test_unseen.py": test("threads", "(folder / 'pipe').write_text('x')"),
        "test_probing.py": test("probes", "assert (folder / 'over').exists() and (folder / 'pipe').read_text() == 'x'")}, "check")
    assert status == 0 and out.endswith("\n3 passed, 0 failed, 0 skipped\n"), out


@pytest.mark.parametrize("marks, is_one", [([], True), (["threads"], True), (["plain", "threads"], False), (["measures"], False)])
def test_marks_choose_tests_as_pytest_does(marks, is_one, tmp_path):
    expression = "not measures and not probes and not plain"
    decorators = "".join(f"@pytest.mark.{mark}\n" for mark in marks)
    (tmp_path / "test_a.py").write_text(f"import pytest\n{decorators}def test_a(): pass")
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-m", expression, tmp_path], stdout=subprocess.PIPE, text=True)
    assert ("1 passed" in done.stdout, is_chosen(expression, marks)) == (is_one, is_one), done.stdout

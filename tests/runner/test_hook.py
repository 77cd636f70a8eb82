"""The hook of git that `make hooks` turns on, in a repository of its own."""
import os
import shutil
import subprocess

import pytest
from lib import features
from lib.features import ROOT

pytestmark = pytest.mark.timeout(900)  # each commit takes 6 s of both cores, of which a busy machine gives a part
GOOD = "static int sum(int a, int b)\n{\n\treturn a + b;\n}\n"


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """(run a command of git, the folder): the sources as one commit, and the hook turned on."""
    features.require("git", "no git (apt-get install git)", shutil.which("git"))
    features.require("clang-format")
    top = tmp_path_factory.mktemp("hook") / "weightd"
    top.mkdir()
    for name in sorted(os.listdir(ROOT)):
        if name.startswith("build") or name == ".git":
            continue
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, top / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(ROOT / name, top / name)
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    env |= {f"GIT_{role}_{what}": "t@localhost" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    env |= {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}

    def run(*words):
        done = subprocess.run(words, cwd=top, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.returncode, done.stdout

    for words in (("git", "init", "-q"), ("git", "add", "-A"), ("git", "commit", "-qm", "all"), ("make", "hooks")):
        status, said = run(*words)
        assert status == 0, said
    return run, top


@pytest.fixture
def commit(repository):
    """commit({path: text}) gives (status, output, whether there is a commit). The fixture undoes it."""
    run, top = repository
    base = run("git", "rev-parse", "HEAD")[1]

    def commit(files, *options):
        for path, text in files.items():
            (top / path).write_text(text)
            assert run("git", "add", path)[0] == 0
        status, said = run("git", "commit", *options, "-m", "test")
        return status, said, run("git", "rev-parse", "HEAD")[1] != base
    yield commit
    run("git", "reset", "-q", "--hard", base.strip())
    run("git", "clean", "-fdq")


def test_a_commit_that_is_fine_passes_whatever_else_the_tree_has(commit, repository, capsys):
    _, top = repository
    (top / "ipc/not_added.c").write_text("/* What is wrong. */\nint  wrong(void) {}")
    old = (ROOT / "ipc/wire.h").read_text()
    status, said, is_there = commit({"ipc/sum.c": GOOD, "ipc/wire.h": old.replace("/* set in", "/* Set in", 1)})
    with capsys.disabled():
        print(f"\n{said.splitlines()[0]}")
    assert status == 0 and is_there and "pre-commit: 2 files, fine (" in said, said


def test_each_fault_is_reported_with_the_way_out(commit):
    manual = (ROOT / "packaging/man/weightd.8.scd").read_text()
    status, said, is_there = commit({
        "ipc/sum.c": f"/* What adds. */\n{GOOD.replace('a + b', 'a+b')}",
        "server/sum.c": f'#include "libclient/connection/call.h"\n{GOOD}',
        "packaging/man/weightd.8.scd": f"{manual}\nA paragraph that is\nnot wrapped.\n"})
    assert status == 1 and not is_there, said
    for expected in ("-i ipc/sum.c", "ipc/sum.c:1: wh: What", "tests/lint/manual.py", "server/sum.c: server may not include libclient",
                     "make pytest ARGS=tests/lint", "pre-commit: 3 files, refused ("):
        assert expected in said, said


def test_no_verify_skips_the_checks(commit):
    status, said, is_there = commit({"ipc/sum.c": "int  wrong(void) {}"}, "--no-verify")
    assert status == 0 and is_there, said

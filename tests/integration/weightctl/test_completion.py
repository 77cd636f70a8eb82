"""Completion of weightctl in zsh and fish, as these shells do it. test_weightctl.py compares that of bash with the help."""
import os
import pty
import select
import subprocess
import time

import pytest

from integration.weightctl.test_weightctl import write_safetensors
from lib.features import BUILD, ROOT

FOLDER = ROOT / "packaging/completions"
PATIENCE = 60  # seconds

ZSHRC = """
unsetopt global_rcs
fpath=({folder} $fpath)
autoload -Uz compinit && compinit -u -D
compadd() {{
	local -a hits
	if (( ! $@[(I)-[OAD]] )); then
		builtin compadd -O hits "$@"
		print -rl -- $hits >&3
	fi
	builtin compadd "$@"
}}
list() {{
	zle list-choices
	print -r -- '==' >&3
	BUFFER=
}}
take() {{
	zle complete-word
	print -rl -- "$BUFFER" '==' >&3
	BUFFER=
}}
zle -N list
zle -N take
bindkey '^X' list
bindkey '^Y' take
exec 3>{answers}
print -r -- '==' >&3
"""


class Zsh:
    """An interactive zsh on a terminal, which lists and completes lines."""

    def __init__(self, folder, env):
        answers = folder / "answers"
        os.mkfifo(answers)
        (folder / ".zshrc").write_text(ZSHRC.format(folder=folder, answers=answers))
        self.terminal, theirs = pty.openpty()
        self.answers = os.open(answers, os.O_RDWR)
        self.got = b""
        self.zsh = subprocess.Popen(["zsh", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
                                    env=env | {"ZDOTDIR": str(folder), "TERM": "xterm"})
        os.close(theirs)
        self.wait()

    def wait(self):
        """The lines up to the next end of an answer."""
        deadline, screen = time.monotonic() + PATIENCE, b""
        while b"==\n" not in self.got:
            ready = select.select([self.answers, self.terminal], [], [], max(0, deadline - time.monotonic()))[0]
            assert ready, f"zsh does not answer; on its terminal is {screen!r}"
            if self.terminal in ready:
                screen += os.read(self.terminal, 65536)
            if self.answers in ready:
                self.got += os.read(self.answers, 65536)
        answer, self.got = self.got.split(b"==\n", 1)
        return answer.decode().splitlines()

    def list(self, line):
        os.write(self.terminal, line.encode() + b"\x18")
        return sorted({found for found in self.wait() if found})

    def take(self, line):
        """The line after the completion key."""
        os.write(self.terminal, line.encode() + b"\x19")
        return self.wait()[-1]

    def close(self):
        os.close(self.terminal)
        self.zsh.kill()
        self.zsh.wait()
        os.close(self.answers)


@pytest.fixture
def environment(daemon, tmp_path):
    """The environment of a shell, and a folder with the files as they are installed."""
    for path in FOLDER.iterdir():
        (tmp_path / path.name).write_text(path.read_text().replace("@completiondir@", str(tmp_path)))
    return daemon.env | {"PATH": f"{BUILD}:{os.environ['PATH']}", "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path),
                         "LC_ALL": "C.UTF-8"}


def expected(env, line):
    """The completions and how they go on, from the file of bash."""
    done = subprocess.run(["bash", FOLDER / "weightctl", *line.split(" ")], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    rest, *found = done.stdout.splitlines() or [""]
    return rest, dict(row.split("\t") for row in found)


@pytest.fixture
def stage(daemon, tmp_path, environment):
    """Two buffers, a folder for paths, and the lines to complete."""
    file = write_safetensors(tmp_path / "a model.safetensors", [("plain", "U8", [1], b"x")])
    for name in "llama:8b", "llama:70b":
        daemon.ctl("load", "-q", name, file)
    (tmp_path / "folder").mkdir()
    lines = ["weightctl ", "weightctl help ver", "weightctl help pki re", "weightctl show ", "weightctl rm llama:7",
             "weightctl ls -o NAME,DI", "weightctl ls --output=+DI", "weightctl load --policy ", "weightctl load --policy=k",
             f"weightctl --socket={daemon.socket} cat llama:8b ", "weightctl wait --timeout ", "weightctl trace "]
    return lines + [f"weightctl {verb} --" for verb in ("load", "exec", "train run", "sync push", "top", "trace log")]


def fish(env, tmp_path, *lines):
    """{line: rows of completions and their descriptions}."""
    script = f"source {tmp_path}/weightctl.fish; for line in $argv; echo == $line; complete -C $line; end"
    done = subprocess.run(["fish", "--no-config", "-c", script, *lines], env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    return {part.split("\n")[0]: part.split("\n")[1:-1] for part in done.stdout.split("== ")[1:]}


def test_fish_completes_as_bash_does_with_descriptions(require, environment, stage, tmp_path):
    require("fish")
    got = fish(environment, tmp_path, *stage)
    for line in stage:
        assert dict(row.partition("\t")[::2] for row in got[line]) == expected(environment, line)[1], line
    assert "load\tLoad safetensors or GGUF as the next version of a buffer" in got["weightctl "]
    assert "--trace-socket\tsocket of weightd-trace" in got["weightctl top --"]
    assert got["weightctl ls --output=+DI"] == ["--output=+DIGEST\tdigest of the current version's bytes"]


def test_fish_completes_paths(require, environment, stage, tmp_path):
    require("fish")
    lines = [f"weightctl load m {tmp_path}/a", f"weightctl pki node --out={tmp_path}/fo", f"weightctl save llama:8b {tmp_path}/fo"]
    got = {line: [row.split("\t")[0] for row in rows] for line, rows in fish(environment, tmp_path, *lines).items()}
    assert list(got.values()) == [[f"{tmp_path}/a model.safetensors"], [f"--out={tmp_path}/folder/"], [f"{tmp_path}/folder/"]]


@pytest.fixture
def zsh(require, environment, tmp_path):
    require("zsh")
    shell = Zsh(tmp_path, environment)
    yield shell
    shell.close()


def test_zsh_completes_as_bash_does(zsh, environment, stage):
    for line in stage:
        assert zsh.list(line) == sorted(expected(environment, line)[1]), line


def test_zsh_quotes_what_it_inserts(zsh, stage, tmp_path):
    assert zsh.take("weightctl loa") == "weightctl load "
    assert zsh.take("weightctl show llama:7") == "weightctl show llama:70b "
    assert zsh.take(f"weightctl load m {tmp_path}/a\\ m") == f"weightctl load m {tmp_path}/a\\ model.safetensors "
    assert zsh.take(f"weightctl pki node --out={tmp_path}/fo") == f"weightctl pki node --out={tmp_path}/folder/"
    assert zsh.take("weightctl ls --output=+DI") == "weightctl ls --output=+DIGEST "


@pytest.mark.parametrize("line", ["weightctl ls --output=NAME,DI", "weightctl load --policy=k", "weightctl sync push --policy=qu"])
def test_a_value_behind_an_equals_sign_is_completed_in_bash(environment, line):
    """readline replaces the text behind the sign alone."""
    script = f"source {FOLDER}/weightctl; " 'COMP_LINE=$1 COMP_POINT=${#1}; _weightctl; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", script, "bash", line], env=environment, capture_output=True, text=True, check=True)
    [whole] = expected(environment, line)[1]
    assert (done.stdout, done.stderr) == (f"{whole.split('=')[1]}\n", "")

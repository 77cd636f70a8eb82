"""
.git-blame-ignore-revs lists the commits that only move, rename or format. Their messages have the line "Blame-ignore: yes":

    git log --reverse --grep='^Blame-ignore: yes$' --format='# %s%n%H' >.git-blame-ignore-revs
"""
import re
import shutil
import subprocess

from lib import features
from lib.features import ROOT
from lint import sources

FILE = ".git-blame-ignore-revs"


def git(*words, **options):
    return subprocess.run(("git", *words), cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, **options)


def hashes():
    return [line for line in sources.text(FILE).splitlines() if line and not line.startswith("#")]


def test_each_line_is_the_hash_of_a_commit():
    assert [line for line in hashes() if not re.fullmatch(r"[0-9a-f]{40}", line)] == []
    assert len(set(hashes())) == len(hashes())


def test_each_commit_is_in_the_history_and_tagged():
    is_whole = shutil.which("git") and git("rev-parse", "--is-shallow-repository").stdout == "false\n"
    features.require("git-history", "no git, or no whole history of the sources (git fetch --unshallow)", is_whole)
    tagged = git("log", "--grep=^Blame-ignore: yes$", "--format=%H", check=True).stdout.split()
    assert [line for line in hashes() if line not in tagged] == []

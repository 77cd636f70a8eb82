"""The texts of journalctl -x: one for each kind of line, in systemd's format."""
import re
import shutil
import subprocess

import pytest
from lib import features
from lint import sources

# Files with the MESSAGE_ID of each kind of line.
CATALOGS = {
    "weightd": ("server/state/audit.c", "server/base/journal.c"),
    "weightd-sync": ("server/sync/net/log_fields.c",),
}
WIDTH_MAX = 77  # journalctl puts "-- " before each line


def read(name):
    return sources.text(f"packaging/systemd/{name}.catalog")


@pytest.mark.parametrize("name", CATALOGS)
def test_each_kind_of_line_has_a_text_and_no_other(name):
    kinds = {uuid for path in CATALOGS[name] for uuid in re.findall(r'"([0-9a-f]{32})"', sources.text(path))}
    texts = re.findall(r"^-- ([0-9a-f]{32})$", read(name), re.M)
    assert len(kinds) >= 11 and sorted(texts) == sorted(kinds)


@pytest.mark.parametrize("name", CATALOGS)
def test_the_man_page_has_each_kind(name):
    page = sources.text(f"packaging/man/{name}.8.scd")
    assert [uuid for uuid in re.findall(r"^-- (\w+)$", read(name), re.M) if uuid not in page] == []


@pytest.mark.parametrize("name", CATALOGS)
def test_lines_fit_into_a_terminal(name):
    text = re.sub(r"^#.*\n", "", read(name), flags=re.M)
    assert [line for line in text.splitlines() if len(line) > WIDTH_MAX] == []


@pytest.mark.parametrize("name", CATALOGS)
def test_systemd_reads_it(name, tmp_path):
    features.require("journalctl", "no journalctl (systemd)", bool(shutil.which("journalctl")))
    folder = tmp_path / "usr/lib/systemd/catalog"
    folder.mkdir(parents=True)
    (folder / f"{name}.catalog").write_text(read(name))
    made = subprocess.run(["journalctl", f"--root={tmp_path}", "--update-catalog"], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    listed = subprocess.run(["journalctl", f"--root={tmp_path}", "--list-catalog", "--no-pager"], capture_output=True, text=True)
    subjects = dict(re.findall(r"^([0-9a-f]{32}) weightd: (.+)$", listed.stdout, re.M))
    assert subjects == dict(re.findall(r"^-- (\w+)\nSubject: (.+)$", read(name), re.M)), listed.stdout + listed.stderr

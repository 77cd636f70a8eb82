"""The man pages as they are built: valid, complete, and the same in each build."""
import functools
import os
import re
import subprocess

import pytest

from integration.weightctl.test_weightctl import VERBS, write_safetensors
from lib import wire
from lib.features import BUILD, ROOT

CALLS = BUILD / "man/calls"
HEADERS = ROOT / "libclient/include/weightd.h", ROOT / "libclient/train/include/weightd-train.h"
MAPS = ROOT / "libclient/libweightd.map", ROOT / "libclient/train/libweightd-train.map"


def written(folder=CALLS):
    """Pages that are no links to others."""
    return [page for page in sorted(folder.glob("*.[0-9]")) if not page.read_text().startswith(".so ")]


def plain(text):
    """The words of a page without its requests and fonts."""
    text = re.sub(r"^\.\w+ ?", "", text, flags=re.M)
    text = re.sub(r"\\f.|\\&|(?<=\))\(3\)", "", text).replace("\\-", "-").replace("\\e", "\\")
    return words(text)


def words(text):
    return " ".join(re.findall(r"[A-Za-z_]\w*", text))


@pytest.mark.parametrize("pages", ["man", "calls", "verbs"])
def test_groff_and_mandoc_find_no_fault(require, pages):
    require("scdoc")
    require("mandoc")
    # scdoc itself writes empty paragraphs, which are a warning of mandoc.
    folder = BUILD / "man" if pages == "man" else BUILD / "man" / pages
    paths, level = written(folder), "warning" if pages == "calls" else "error"
    assert len(paths) >= 10
    done = subprocess.run(["groff", "-man", "-Tutf8", "-wall", "-z", *paths], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    done = subprocess.run(["lexgrog", *paths], capture_output=True, text=True)  # apropos has what it finds
    assert (done.returncode, {line.partition(": ")[0] for line in done.stdout.splitlines()}) == (0, {str(p) for p in paths}), done.stderr
    done = subprocess.run(["mandoc", "-Tlint", f"-W{level}", *paths], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("path", MAPS, ids=lambda path: path.stem)
def test_every_public_symbol_has_a_page_that_names_it(path):
    symbols = re.findall(r"^\t(weightd_\w+);", path.read_text(), re.M)
    assert len(symbols) > 80
    for symbol in symbols:
        text = (CALLS / f"{symbol}.3").read_text()
        if link := re.fullmatch(r"\.so man3/(\w+\.3)\n", text):
            text = (CALLS / link[1]).read_text()
        names, summary = re.search(r"^\.SH NAME\n(.*?) \\- (.+)$", text, re.M).groups()
        assert symbol in names.split(", ") and re.search(r"\w \w", summary), symbol
        assert re.search(rf"\\fB[^\n]*[ *]{symbol}\(", text.partition("SYNOPSIS")[2].partition("DESCRIPTION")[0]), symbol


def test_links_lead_to_pages():
    pages = {page.name for page in written()}
    links = {page.name: page.read_text() for page in CALLS.glob("*.3") if page.name not in pages}
    assert links and {name: text for name, text in links.items() if text.split("/")[-1].strip() not in pages} == {}
    for page in written():
        missing = [name for name in re.findall(r"\\fB(weightd_\w+)\\fR\(3\)", page.read_text()) if not (CALLS / f"{name}.3").exists()]
        assert missing == [], page.name


@pytest.mark.parametrize("header", HEADERS, ids=lambda path: path.name)
def test_each_comment_of_a_header_is_in_a_page(header):
    """With all of its words, in their order."""
    pages = plain("\n".join(page.read_text() for page in written()))
    comments = [re.sub(r"^[ \t]*\* ?", "", c[2:-2], flags=re.M) for c in re.findall(r"/\*.*?\*/", header.read_text(), re.S)]
    comments = [c for c in comments if not re.fullmatch(r" -+ .* -+ ", c)]
    assert len(comments) > 150
    for comment in comments:
        for paragraph in re.split(r"\n\s*\n", comment):
            # The first line of all is the line NAME; rows are tagged paragraphs.
            for part in re.split(r"^\t", re.sub(r"^.*\.h: ", "", paragraph.lstrip("\n ")), flags=re.M):
                assert words(part) in pages, part


def test_pages_are_the_same_in_each_build(tmp_path):
    version, epoch = re.search(r'^\.TH \S+ 3 (\S+) "weightd (\S+)"', (CALLS / "weightd_attach.3").read_text(), re.M).group(2, 1)
    seconds = subprocess.run(["date", "+%s", "-ud", epoch], capture_output=True, text=True, check=True).stdout.strip()
    subprocess.run([ROOT / "packaging/header-pages", tmp_path / "new", version, seconds, *HEADERS], check=True,
                   env={"PATH": os.environ["PATH"], "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "LC_ALL": "C"}, cwd=tmp_path)
    assert {p.name: p.read_text() for p in (tmp_path / "new").iterdir()} == {p.name: p.read_text() for p in CALLS.iterdir()}


def test_man_finds_the_page_of_a_call_under_each_of_its_names(tmp_path):
    (tmp_path / "man3").symlink_to(CALLS)
    for name in "weightd_attach", "weightd_buffer_swap_on", "weightd_attach_options", "weightd.h":
        done = subprocess.run(["man", "-P", "cat", name], capture_output=True, text=True,
                              env={"PATH": os.environ["PATH"], "MANPATH": str(tmp_path), "MANWIDTH": "80", "LC_ALL": "C.UTF-8"})
        assert (done.returncode, done.stderr) == (0, "") and f"{name.removesuffix('_options')}" in done.stdout, name


PROTOCOL = BUILD / "man/weightd-protocol.7"


@functools.cache
def rendered(page, width=500):
    """The page as a reader sees it."""
    env = {"PATH": os.environ["PATH"], "MANWIDTH": str(width), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(["man", "-P", "cat", "-l", page], capture_output=True, text=True, env=env, check=True)
    return re.sub(r".\x08", "", done.stdout)


def section(text, name):
    return re.search(rf"^{name}\n(.*?)(?=^[A-Z ]+\n|\Z)", text, re.M | re.S)[1]


@pytest.fixture(scope="module")
def protocol():
    return rendered(PROTOCOL)


def test_the_page_of_the_protocol_has_the_structs_of_the_compiler(protocol, tmp_path):
    """Sizes and offsets, compiled into a program that prints them."""
    shown = {name: (int(size), re.findall(r"^ +(\d+)  (?:u?int\d+_t|char|\w+) (\w+)", body, re.M)) for name, size, body in
             re.findall(r"^ {7}(\w+), (\d+) bytes:\n(.*?)(?=^ {7}\w+, \d+ bytes:|\Z)", section(protocol, "STRUCTURES"), re.M | re.S)}
    header = (ROOT / "ipc/wire.h").read_text()
    assert {f"wire_{name}" for name in shown} == set(re.findall(r"^struct (\w+) \{", header, re.M))
    lines = [f'printf("{name} %zu{" %zu" * len(members)}\\n", sizeof(struct wire_{name})'
             + "".join(f", offsetof(struct wire_{name}, {member})" for _, member in members) + ");" for name, (_, members) in shown.items()]
    source, program = tmp_path / "sizes.c", tmp_path / "sizes"
    source.write_text('#include <stddef.h>\n#include <stdio.h>\n#include "ipc/wire.h"\nint main(void)\n{\n' + "\n".join(lines) + "\n}\n")
    subprocess.run(["gcc", "-std=gnu17", f"-I{ROOT}", source, "-o", program], check=True)
    printed = {name: list(map(int, rest)) for name, *rest in map(str.split, subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines())}
    assert printed == {name: [size, *(int(at) for at, _ in members)] for name, (size, members) in shown.items()}


def test_the_page_of_the_protocol_has_the_messages_that_the_tests_send(protocol):
    """tests/lib/wire.py speaks the protocol without the header."""
    shown = {int(op): (name, request, reply) for op, name, request, reply in re.findall(
        r"^ {7}(\d+) (\w+)\n +Request: (.*?)\. Reply: (.*?)\.\n\n +\w", section(protocol, "MESSAGES"), re.M)}
    assert list(shown) == list(wire.OPS)
    for op, (name, request, _) in shown.items():
        assert getattr(wire, name) == op
        assert int((re.search(r"(\d+) bytes", request) or [0, 0])[1]) == wire.BODIES[op].size, name
        assert int((re.search(r"(\d+) descriptor", request) or [0, 0])[1]) == wire.N_FDS[op], name


def test_the_page_of_the_protocol_has_the_constants_of_the_compiler(protocol, tmp_path):
    shown = dict(re.findall(r"^ {11}(WIRE_\w+) (0x\w+|\d+(?: << \d+)?)(?:  .*)?$", section(protocol, "CONSTANTS"), re.M))
    wanted = set(re.findall(r"^(?:#define |\t)(WIRE_\w+)(?=[ ,])", (ROOT / "ipc/wire.h").read_text(), re.M))
    assert {name for name in wanted if not name.endswith("_END") and name not in {f"WIRE_{op}" for op in
            re.findall(r"^ {7}\d+ (\w+)$", section(protocol, "MESSAGES"), re.M)}} == set(shown)
    asserts = "\n".join(f'static_assert((unsigned long long){name} == ({value}), "{name}");' for name, value in shown.items())
    done = subprocess.run(["gcc", "-std=gnu17", f"-I{ROOT}", "-fsyntax-only", "-xc", "-"], capture_output=True, text=True,
                          input=f'#include "ipc/wire.h"\n{asserts}\n')
    assert (done.returncode, done.stderr) == (0, "")


def test_the_example_of_the_page_of_the_protocol_reads_a_version(daemon, tmp_path):
    page = (ROOT / "packaging/man/weightd-protocol.7.scd").read_text()
    code = re.search(r"^# EXAMPLE\n.*?^```\n(.*?)^```", page, re.M | re.S)[1].replace("\\\\", "\\")
    done = subprocess.run(["/usr/bin/python3", "-c", code], env=daemon.env | {"WEIGHTD_SOCKET": daemon.socket}, capture_output=True, text=True)
    assert done.returncode == 1 and "no buffer 'minilm'" in done.stderr, done.stderr
    daemon.ctl("load", "-q", "minilm", write_safetensors(tmp_path / "m.safetensors", [("plain", "U8", [4], b"abcd")]))
    done = subprocess.run(["/usr/bin/python3", "-c", code], env=daemon.env | {"WEIGHTD_SOCKET": daemon.socket}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    version, size, begin = done.stdout.split(maxsplit=2)
    assert (version, size) == ("1", "4") and begin.startswith("b'") and begin.rstrip().endswith("\\x00'")  # length of the header


VERB_PAGES = BUILD / "man/verbs"
SCREENS = 100  # lines


def page_of(verb):
    page = VERB_PAGES / f"weightctl-{verb.replace(' ', '-')}.1"
    link = re.fullmatch(r"\.so man1/(\S+)\n", page.read_text())
    return VERB_PAGES / link[1] if link else page


def test_each_verb_has_a_page_and_the_overview_lists_it():
    overview = rendered(VERB_PAGES / "weightctl.1")
    assert {page_of(verb).name for verb in VERBS} == {page.name for page in written(VERB_PAGES)} - {"weightctl.1"}
    for page in {page_of(verb) for verb in VERBS}:
        assert f"{page.stem}(1)" in overview, page
    assert {page.stem.removeprefix("weightctl-") for page in VERB_PAGES.iterdir()} - {"weightctl"} == {v.replace(" ", "-") for v in VERBS}


def test_the_page_of_a_verb_fits_two_screens_and_has_its_options_and_columns(daemon):
    def unbroken(page):
        """Its text in one line, without the hyphens of groff, and with all hyphens at the end of a line."""
        return " ".join((re.sub(r"‐\n\s+", "", page) + re.sub(r"[‐-]\n\s+", "-", page)).split())

    for verb in VERBS:
        page, text = rendered(page_of(verb), 80), daemon.ctl(*verb.split(), "--help").stdout
        assert len(page.splitlines()) <= SCREENS, verb
        assert f"weightctl {verb} " in page or f"weightctl {verb}\n" in page, verb
        # Options of all verbs are in weightctl(1).
        wanted = set(re.findall(r"^ (?:-\w, |    )(--[\w-]+)", text, re.M)) - COMMON
        wanted |= set(re.findall(r"^ [* ] ([A-Z]+) ", text.partition("\nColumns")[2], re.M))
        whole = unbroken(page)
        if re.search(r"(?:As for|options are those of) sync push", whole):
            whole += unbroken(rendered(page_of("sync push"), 80))
        assert [w for w in sorted(wanted) if w not in whole] == [], verb


COMMON = {"--socket", "--sync-socket", "--trace-socket", "--help", "--device", "--owner", "--json", "--output", "--noheadings", "--bytes"}


def test_the_pages_of_verbs_have_all_that_their_source_has(require):
    """Each paragraph; references to sections that stay in weightctl(1) differ, and so do heads that name verbs alone."""
    require("scdoc")
    pages = plain("\n".join(page.read_text() for page in written(VERB_PAGES)))
    source = (ROOT / "packaging/man/weightctl.1.scd").read_bytes()
    roff = subprocess.run(["scdoc"], input=source, capture_output=True, check=True).stdout.decode()
    titles = re.findall(r"^# ([A-Z ]+)$", source.decode(), re.M)
    known = {word for verb in VERBS for word in verb.split()}
    paragraphs = [p for p in map(plain, re.split(r"^\..*$", roff, flags=re.M)) if not set(p.split()) <= known]
    assert len(paragraphs) > 500
    for paragraph in paragraphs:
        for part in re.split("|".join([*(rf"{t} below|{t}" for t in titles), "below"]), paragraph):
            assert part.strip() in pages, part

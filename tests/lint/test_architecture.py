"""The documents at the top name only files and pages that exist. ARCHITECTURE.md names every folder and program."""
import re

import pytest
from lint import sources
from lint.sources import ROOT

DOCUMENTS = {name: (ROOT / name).read_text() for name in (
    "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")}
ARCHITECTURE = DOCUMENTS["ARCHITECTURE.md"]
README_WORDS = 1600
LINES, COLUMNS, GLOSSARY = 135, 80, 30  # two screens, and a glossary
TOPS = ("ipc/", "server/", "libclient/", "bpf/", "tests/", "packaging/", "findings/")
MADE = ("tests/gpu/results",)  # a run makes these


def section(title):
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", ARCHITECTURE, re.M | re.S)[1]


def tree():
    """{folder: its line} of the section Programs and folders: two columns a level, and several may share a line."""
    found, above = {}, []
    for line in re.search(r"```\n(.*?)```", section("Programs and folders"), re.S)[1].splitlines():
        names = re.match(r" *((?:[\w-]+/ ?)+)", line)[1].split()
        level = (len(line) - len(line.lstrip())) // 2
        found |= {"/".join([*above[:level], name.rstrip("/")]): line for name in names}
        above = [*above[:level], names[0].rstrip("/")]
    return found


def rooms():
    """Folders with C sources; of tests only those at its top."""
    folders = {path.parent for path in sources.files(suffixes=(".c", ".cc", ".h", ".cu"))}
    return {"/".join(folder.parts[:2] if folder.parts[0] == "tests" else folder.parts) for folder in folders}


def paths(text):
    """Links, and words in backquotes that are paths of ours; NAME stands for any."""
    words = re.findall(r"`([\w./-]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    return sorted({w for w in words if w.startswith(TOPS) and "NAME" not in w and not w.startswith(MADE)} | set(links))


def test_each_folder_of_the_tree_exists():
    assert [folder for folder in sorted(tree()) if not (ROOT / folder).is_dir()] == []


def test_each_folder_with_sources_is_in_the_tree():
    assert sorted(rooms() - set(tree())) == []


def test_each_folder_with_a_main_has_its_program_beside_it():
    names = {"server": "weightd", "libclient/weightctl": "weightctl", "bpf": "weightd-trace"}
    for path in sources.files("server", "libclient", "bpf"):
        if path.name == "main.c":
            name = names.get(str(path.parent)) or "-".join(["weightd", *path.parent.parts[1:]])
            assert re.search(rf"(?<![\w-]){name}(?![\w-])", tree()[str(path.parent)]), path


@pytest.mark.parametrize("document", DOCUMENTS)
def test_each_path_that_a_document_names_exists(document):
    assert [path for path in paths(DOCUMENTS[document]) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("document", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_each_identifier_that_a_document_names_exists(document):
    words = set(re.findall(r"`(?:const )?(?:(?:struct|enum) (\w+)|(\w+)(?:\[\]|\(\)))`", DOCUMENTS[document]))
    code = " ".join(sources.text(path) for path in sources.files("ipc", "server", "libclient", "bpf"))
    assert [word for word in sorted(map("".join, words)) if not re.search(rf"\b{word}\b", code)] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_each_page_that_a_document_names_exists(document):
    pages = re.findall(r"`((?:lib)?weight[\w.-]*)\((\d)\)", DOCUMENTS[document])
    assert [page for page in pages if not (ROOT / f"packaging/man/{page[0]}.{page[1]}.scd").exists()] == []


def test_the_readme_is_short():
    assert len(DOCUMENTS["README.md"].split()) <= README_WORDS


def test_architecture_is_short():
    lines = ARCHITECTURE.splitlines()
    assert len(lines) <= LINES and [line for line in lines if len(line) > COLUMNS] == []
    assert 0 < len(re.findall(r"^\|", section("Words"), re.M)) - 2 <= GLOSSARY

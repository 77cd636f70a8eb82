"""The literal blocks of man pages, as a reader sees them, and the commands in those that have prompts."""
import re
import textwrap

from lib.features import ROOT

MAN = ROOT / "packaging/man"


def sections(page):
    """{title: its literal blocks} of a page; of all sections, in their order. A block is the text between two lines of ```."""
    found, title, block = {}, "", None
    for line in (MAN / f"{page}.scd").read_text().splitlines(keepends=True):
        if line.strip() == "```":
            if block is not None:
                found[title].append(textwrap.dedent("".join(block)).replace("\\\\", "\\"))
            block = [] if block is None else None
        elif block is not None:
            block.append(line)
        elif line.startswith("# "):
            title = line[2:].rstrip("\n")
            found[title] = []
    return found


def literals(page, title):
    """Those of a section."""
    return sections(page)[title]


def commands(block):
    """[(host, script)] of a block with prompts: "$ ", or "a# " for one of the host "a". Lines without one continue a command."""
    found = []
    for line in block.splitlines(keepends=True):
        if prompt := re.match(r"([a-z]?)[$#] ", line):
            found.append((prompt[1], line[prompt.end():]))
        else:
            host, script = found.pop()
            found.append((host, script + line.removeprefix("> ")))
    return found


def script(block):
    """All of its commands, for one shell."""
    return "".join(command for _, command in commands(block))

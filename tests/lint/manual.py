"""
The sources of man pages, scdoc, in lines that can be reviewed.

A paragraph is wrapped anew as a whole; what scdoc reads line by line stays: literal text, headings, tables, comments.
Nothing of what a page looks like changes by it. `make format` runs this file.
"""
import re
from pathlib import Path

WIDTH = 100
SCREEN = 80
LITERAL, WHOLE = "```", ("#", "|", "[", "]", ":", ";")  # begins and ends it; a line of its own


def pages():
    return sorted(Path(__file__).parents[2].glob("packaging/man/*.scd"))


def wrap(words, first, rest):
    """Lines of the words. None begins with what scdoc would take for something else than text."""
    glued = re.sub(r" (?=[-#|\[\]:;.])", "\0", " ".join(words)).split(" ")
    lines = [first + glued[0]]
    for word in glued[1:]:
        longer = f"{lines[-1]} {word}"
        if len(longer.expandtabs(8)) <= WIDTH:
            lines[-1] = longer
        else:
            lines.append(rest + word)
    return [line.replace("\0", " ") for line in lines]


def begin(line):
    """The indent and mark of a line, and the indent of the lines that continue it."""
    first = re.match(r"\t*(?:(?:-|\.) +)?", line)[0]
    return first, first.replace("-", " ").replace(".", " ")


def formatted(text):
    out, words, first, rest, literal = [], [], "", "", False

    def flush():
        if words:
            out.extend(wrap(words, first, rest))
            words.clear()

    for line in text.split("\n"):
        bare = line.lstrip("\t")
        goes_on = words and line.startswith(rest) and not line[len(rest):].startswith(("\t", "- ", ". ", " "))
        if literal or bare.startswith((LITERAL, *WHOLE)) or not bare:
            flush()
            out.append(line)
            literal ^= bare.startswith(LITERAL)
            continue
        if not goes_on:
            # Behind "++" scdoc wants the text without the tabs that its paragraph has.
            after_break = words == [] and out and out[-1].endswith("++")
            flush()
            first, rest = ("", rest) if after_break else begin(line)
        words.extend(line[len(rest if goes_on else first):].split(" "))
        if line.endswith("++"):
            flush()
    flush()
    return "\n".join(out)


def too_wide(text):
    """Lines of literal text that leave the screen: man indents them by 11, and by 4 for each tab."""
    found, literal = [], False
    for line in text.split("\n"):
        bare = line.lstrip("\t")
        if bare.startswith(LITERAL):
            literal, depth = not literal, len(line) - len(bare)
        elif literal and len(line[depth:].expandtabs(8)) > SCREEN - 11 - 4 * depth:
            found.append(line)
    return found


if __name__ == "__main__":
    for page in pages():
        page.write_text(formatted(page.read_text()))

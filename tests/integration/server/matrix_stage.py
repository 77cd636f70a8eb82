#!/usr/bin/env python3
"""
The users of matrix.py and a weightd for them, also where one of both is in a user namespace; and the tables of
weightd.conf(5): matrix_stage.py prints them, matrix_stage.py --renew writes them into the page.
"""
import contextlib
import errno
import os
import pathlib
import sys
import tempfile
import textwrap
from typing import NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from integration.server.matrix import (ADMIN, CLEAN_UP, CONF, COSTS, GROUP, MEMBER, OTHER, OWNER, REQUESTS, PUBLISH_FOR_ALL, ROWS, STAFF,  # noqa: E402
                                       VERBS, Case, make_holder, make_job, make_nothing)
from integration.server import userns  # noqa: E402
from lib import safetensors_file  # noqa: E402
from lib.child import Child  # noqa: E402
from lib.daemon import Daemon, copy_for_others  # noqa: E402
from lib.features import ROOT  # noqa: E402
from lib.scene import ledger  # noqa: E402
from lib.wire import COSTS as COST_RECORDS  # noqa: E402
from lib.wire import IMAGES, JOBS, SLOTS, Refused, Wire, until  # noqa: E402

PAGE = ROOT / "packaging/man/weightd.conf.5.scd"
WIDTH = 69  # of literal text in a man page of 80 columns
MODES = 0o600, 0o640, 0o644, 0o660
LETTERS = {errno.EACCES: "A", errno.EPERM: "P", errno.ENOENT: "N", errno.ESTALE: "S", errno.EEXIST: "E"}
HIDDEN = "."
KINDS = "leases", "buffers", "versions", "descriptors", "bytes", "held"
SIGN_ALONE = "bytes", "held"  # these numbers depend on the model
INSIDE = 100000  # the first id of the namespace of a weightd that runs in one


class Person(NamedTuple):
    """A user of the machine; `is_root_inside` of a user namespace of its own."""
    uid: int
    gid: int
    groups: tuple = ()
    is_root_inside: bool = False


PEOPLE = {
    "owner": Person(OWNER, GROUP),
    "member": Person(MEMBER, MEMBER, (GROUP,)),
    "other": Person(OTHER, OTHER),
    "inside": Person(OTHER, OTHER, is_root_inside=True),
    "admin": Person(ADMIN, ADMIN, (STAFF,)),
    "root": Person(0, 0),
}


class Someone(Child):
    """A process of that user, which does as it is asked over one connection at a time."""

    def __init__(self, person, path, first=0):
        def obey(pipe):
            if person.is_root_inside:
                userns.become_root_inside()
            os.environ["WEIGHTD_SOCKET"] = path
            w = None
            for order, *args in iter(pipe.recv, None):
                try:
                    if order == "connect":
                        w = Wire(path, features=IMAGES)
                        pipe.send(None)
                    elif order == "close":
                        pipe.send(w.close())
                    else:
                        row, *args = args
                        pipe.send(getattr(ROWS[row], order)(w, *args))
                except Exception as e:
                    pipe.send(e)

        super().__init__(obey, uid=first + person.uid, gid=first + person.gid, groups=[first + g for g in person.groups])

    def ask(self, order, *args):
        """Returns or raises the result of the order."""
        self.say((order, *args))
        answer = self.hear()
        if isinstance(answer, Exception):
            raise answer
        return answer

    @contextlib.contextmanager
    def connected(self):
        self.ask("connect")
        yield
        self.ask("close")


def settled_ledger(w):
    """The charges of each user, once the memory of ended versions is free: all memory belongs to something."""
    until(lambda: w.stat().slot_bytes == sum(s.size for s in w.list(SLOTS)) + sum(j.n_bytes for j in w.list(JOBS)),
          "ended versions are freed")
    held = {cost.uid: cost.held_bytes for cost in w.list(COST_RECORDS)}
    return {uid: charges | {"held": held.get(uid, 0)} for uid, charges in ledger(w).items()}


class Stage:
    """
    with Stage() as stage:
        cells = stage.column(PEOPLE["member"])

    A weightd with an owner and an administrator. With `first` it runs in a user namespace, whose id 0 is that one outside.
    """

    def __init__(self, first=0):
        self.first = first

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weightd-")))
            folder.chmod(0o1777)
            model = folder / "model"
            model.mkdir()
            (model / "config.json").write_text("{}")
            (model / "model.safetensors").write_bytes(safetensors_file.pack({"t": ("U8", [4096], b"data" * 1024)}))
            copy_for_others("weightctl", folder)
            (folder / "w.conf").write_text(CONF)
            os.chown(folder / "w.conf", self.first, self.first)
            prefix = userns.daemon_prefix(self.first) if self.first else ()
            self.daemon = stack.enter_context(contextlib.closing(Daemon("--config", folder / "w.conf", prefix=prefix)))
            self.owner, self.admin = (stack.enter_context(self.someone(PEOPLE[who])) for who in ("owner", "admin"))
            self.case = Case("", tools=str(folder), folder=str(folder))
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *args):
        return self.stack.__exit__(*args)

    def someone(self, person, first=None):
        return Someone(person, self.daemon.socket, self.first if first is None else first)

    @contextlib.contextmanager
    def made(self, row, mode, asker):
        """The case of that row, of a buffer of its own."""
        case = self.case._replace(name=f"{row}.{mode:o}.{asker.pid}")
        is_admins = ROWS[row].make == make_holder
        if is_admins:
            self.let_admin(PUBLISH_FOR_ALL, case)
        with self.owner.connected():
            made = self.owner.ask("make", row, case, mode)
            if is_admins:
                self.let_admin(CLEAN_UP, case)
            yield made
        self.let_admin(CLEAN_UP, case)

    def let_admin(self, row, case):
        with self.admin.connected():
            self.admin.ask("act", row, case)

    def letter(self, row, mode, asker):
        """The result: "+", HIDDEN, or a letter for the errno."""
        with self.made(row, mode, asker) as case, asker.connected():
            try:
                return HIDDEN if asker.ask("act", row, case) is False else "+"
            except Refused as e:
                assert e.errno in LETTERS, (ROWS[row].label, e)
                return LETTERS[e.errno]

    def column(self, person, first=None, rows=REQUESTS + VERBS):
        """By label of the first rows, a letter for each mode of a buffer; a single one where there is none."""
        with self.someone(person, first) as asker:
            return {row.label: "".join(self.letter(i, mode, asker) for mode in
                                       (MODES[:1] if row.make in (make_nothing, make_job, make_holder) else MODES))
                    for i, row in enumerate(rows)}

    def charges(self, row, who):
        """{"owner" or "asker": {charge: its change}} while the connection is there, of a buffer of mode 0660."""
        with self.someone(PEOPLE[who]) as asker, Wire(self.daemon.socket) as watcher:
            with self.made(row, MODES[3], asker) as case, asker.connected():
                before = settled_ledger(watcher)
                asker.ask("act", row, case)
                after = settled_ledger(watcher)
            until(lambda: PEOPLE[who].uid not in ledger(watcher), "nothing is charged to it")
        return {name: {kind: n for kind in KINDS if (n := after[uid][kind] - before[uid][kind])}
                for name, uid in (("asker", PEOPLE[who].uid), ("owner", OWNER))}


# --- The tables ---------------------------------------------------------------------------------------


def render_rights(columns):
    """Lines of literal text: rows with the same cells stand together."""
    groups = {}
    for label in next(iter(columns.values())):
        groups.setdefault(tuple(column[label] for column in columns.values()), []).append(label)
    lines = ["".join(f"{who:<8}" for who in columns).rstrip()]
    for cells, labels in groups.items():
        left = "".join(f"{cell:<8}" for cell in cells)
        words = textwrap.wrap(", ".join(label.replace(" ", "\0") for label in labels), WIDTH - len(left))
        lines += [(left if i == 0 else " " * len(left)) + line.replace("\0", " ") for i, line in enumerate(words)]
    return lines


def render_charges(rows):
    """Lines of literal text, one for each user with a change."""
    def line(label, who, cells):
        return f"{label:<15}{who:<6}" + "".join(f"{cell:<{len(kind) + 1}}" for kind, cell in zip(KINDS, cells)).rstrip()

    def cell(kind, n):
        return "" if not n else f"{n:+}"[:1] if kind in SIGN_ALONE else f"{n:+}"

    lines = [line("", "", KINDS)]
    for label, changed in rows.items():
        shown = [(who, changes) for who, changes in changed.items() if changes or who == "asker"]
        for i, (who, changes) in enumerate(shown):
            lines.append(line("" if i else label, who, [cell(kind, changes.get(kind, 0)) for kind in KINDS]).rstrip())
    return lines


OF_ADMINS = "ACCESS owner", "DROP version"
SHOWN = "owner", "member", "other", "admin", "unnamed"


def measure_outside():
    """The columns of all people, for root of requests alone, and their charges."""
    with Stage() as stage:
        return ({who: stage.column(person, rows=REQUESTS if who == "root" else REQUESTS + VERBS)
                 for who, person in PEOPLE.items()},
                {row.label: stage.charges(len(REQUESTS + VERBS) + i, "admin" if row.label in OF_ADMINS else "member")
                 for i, row in enumerate(COSTS)})


def measure_inside():
    """The columns for a weightd in a user namespace; requests alone of those that it has names for, and of root outside."""
    with Stage(INSIDE) as stage:
        return {"unnamed": stage.column(PEOPLE["other"], first=0), "root outside": stage.column(PEOPLE["root"], 0, REQUESTS),
                **{who: stage.column(PEOPLE[who], rows=REQUESTS) for who in ("member", "admin")}}


def tables(columns, charges):
    """The lines of both."""
    return render_rights({who: columns[who] for who in SHOWN}), render_charges(charges)


def split(text):
    """The text of the page as a list; the lines of the tables have an odd index."""
    start = text.index("\n# RIGHTS AND COSTS\n")
    end = text.index("\n# ", start + 1)
    parts = text[start:end].split("```\n")
    assert len(parts) == 5, "two literal blocks"
    return [text[:start] + parts[0], *parts[1:4], parts[4] + text[end:]]


def renewed(text, found):
    """The page with these tables."""
    parts = split(text)
    for i, lines in zip((1, 3), found):
        parts[i] = "".join(line + "\n" for line in lines)
    return "```\n".join(parts)


def main(arguments):
    if arguments not in ([], ["--renew"]):
        return f"usage: {sys.argv[0]} [--renew]"
    columns, charges = measure_outside()
    found = tables(measure_inside() | columns, charges)
    for lines in found:
        print("\n".join(lines), end="\n\n")
    if arguments:
        PAGE.write_text(renewed(PAGE.read_text(), found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The protocol, checked by spin in every order of its steps, with kills between any two of them.

The top of each model describes it. A configuration must be searched to its end without an
error; each sabotage of one rule (a BUG_ switch of the model) must be found: a model that cannot fail
proves nothing.
"""
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess

import pytest
from lib import features

pytestmark = pytest.mark.timeout(600)  # a search waits for those before it
HERE = pathlib.Path(__file__).parent
MEMORY_MB = 900  # limit of one search
FLAGS = {  # flags of the compiler and of the search
    False: (["-DSAFETY", "-DNOCLAIM"], []),
    True: (["-DNOREDUCE", "-DNFAIR=3"], ["-a", "-f", "-N", "ends"]),  # no reduction under fairness
}
INCOMPLETE = ("max search depth too small", "Search not completed", "truncated", "out of memory", "MEMLIM")

# Searches of which -O1 saves more than the three seconds that it takes. They alone compress states, which takes a third
# more time: those of "rollback" need more than MEMORY_MB otherwise.
LONG = "two-kills", "rollback", "commit-first", "blunt-reader", "evict-ends"

CONFIGURATIONS = {  # name: (model, switches, is its question progress?)
    "two-writers": ("publish", "WRITERS=2 JOBS=2 KEEP=1 ROUNDS=0", False),
    "two-kills": ("publish", "JOBS=2 KEEP=1 CRASHES=2", False),
    "rollback": ("publish", "JOBS=2 KEEP=2 ROLLBACKS=1", False),
    "rollback-undisturbed": ("publish", "JOBS=2 KEEP=2 ROLLBACKS=1 CRASHES=0", False),
    "publish-after-rollback": ("publish", "JOBS=3 KEEP=2 ROLLBACKS=1 ROUNDS=0", False),
    "reusable": ("publish", "JOBS=3 KEEP=1 REUSABLE=1", False),
    "commit-first": ("publish", "JOBS=2 KEEP=1 REUSABLE=1 CRASHES=2 COMMIT_FIRST=1 BUG_LATE_STORE", False),
    "publish-ends": ("publish", "WRITERS=2 JOBS=2 KEEP=1 ROUNDS=0 DEADLY=1", True),
    "blunt-reader": ("exclusive", "POLITE=0", False),
    "wait": ("exclusive", "WRITERS=1", False),
    "wait-undisturbed": ("exclusive", "WRITERS=1 BLUNT=0 PROMPT=1 CRASHES=2", False),
    "evict": ("exclusive", "WRITERS=1 BLUNT=0 EVICT=1 CRASHES=2", False),
    "wait-ends": ("exclusive", "WRITERS=1 BLUNT=0 LIVE=1", True),
    "evict-ends": ("exclusive", "WRITERS=1 BLUNT=0 LIVE=1 EVICT=1", True),
}
FURTHER = "two-kills", "rollback"  # the largest: one more kill than in others

PINNED = r"assertion violated .*open\["
TORN = r"assertion violated .*\(mem_[ab]\[s\]==content|assertion violated \(\(a==content"
LOST = r"assertion violated .*(acked|have\[|rec\[index\]\.ok|committed|seen)"
ENDLESS = r"acceptance cycle"

SABOTAGE = [  # (rule, model, switches, what has to be found)
    ("COMMIT_IN_PLACE", "publish", "JOBS=2 KEEP=1", LOST),
    ("INDEX_FIRST", "publish", "JOBS=2 KEEP=1", LOST),
    ("HEAD_FIRST", "publish", "JOBS=2 KEEP=1", LOST),
    ("SERVE_HEAD", "publish", "JOBS=2 KEEP=2 ROLLBACKS=1", LOST),
    ("ROLLBACK_HEAD_ONLY", "publish", "JOBS=2 KEEP=2 ROLLBACKS=1 ROUNDS=0", LOST),
    ("NUMBER_TWICE", "publish", "JOBS=2 KEEP=1", r"assertion violated \(content\[v\]==0\)"),
    ("FORGETS", "publish", "WRITERS=2 JOBS=2 KEEP=1 ROUNDS=0", LOST),
    ("NO_BARRIER", "publish", "JOBS=2 KEEP=1 COMMIT_FIRST=1 BUG_LATE_STORE", LOST),
    ("LATE_STORE", "publish", "JOBS=3 KEEP=1 REUSABLE=1 ROUNDS=0", LOST),
    ("NO_PROOF", "publish", "JOBS=2 KEEP=1", PINNED),
    ("NO_SEAL", "publish", "JOBS=2 KEEP=1", TORN),
    ("NO_DEADLINE", "publish", "WRITERS=2 JOBS=2 KEEP=1 ROUNDS=0 DEADLY=1", ENDLESS),
    ("NO_RETRY", "exclusive", "POLITE=0 WRITERS=1", TORN),
    ("FORGET_UPDATE", "exclusive", "POLITE=0 WRITERS=1", TORN),
    ("HAND_BEFORE_COMMIT", "exclusive", "POLITE=0 WRITERS=1", TORN),
    ("GIVE_UP_READY", "exclusive", "POLITE=0", TORN),
    ("NO_WRITER_PROOF", "exclusive", "POLITE=0 CRASHES=0", TORN),
    ("ANYBODY_PUBLISHES", "exclusive", "POLITE=0 CRASHES=0", TORN),
    ("STALE_ACK", "exclusive", "BLUNT=0 CRASHES=0", TORN),
    ("NO_QUIESCE", "exclusive", "WRITERS=1 BLUNT=0 CRASHES=0", TORN),
    ("TRUST_LEASE", "exclusive", "WRITERS=1 BLUNT=0", TORN),
    ("NO_GRACE", "exclusive", "WRITERS=1 BLUNT=0 PROMPT=1", r"assertion violated .*\|\|\(\(a==content"),
    ("NO_DEADLINE", "exclusive", "WRITERS=1 BLUNT=0 LIVE=1", ENDLESS),
]
SABOTAGE_AGAIN = [  # of the same rule, with other switches
    ("NO_PROOF", "publish", "JOBS=3 KEEP=1 REUSABLE=1", PINNED),
    ("TRUST_LEASE", "exclusive", "WRITERS=1 BLUNT=0 EVICT=1 CRASHES=0", TORN),
    ("NO_DEADLINE", "exclusive", "WRITERS=1 BLUNT=0 LIVE=1 EVICT=1", ENDLESS),
]




def run(folder, *command):
    return subprocess.run(command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def search(folder, model, switches, is_progress, is_long=False):
    """The report of pan about the model; and, if it found an error, the end of the way to it. clang compiles twice as fast."""
    defines = [f"-D{s}" for s in switches.split()]
    compile_flags, search_flags = FLAGS[is_progress]
    (folder / "m.pml").write_text((HERE / f"{model}.pml").read_text())
    compiler = ["gcc", "-O1", "-DCOLLAPSE"] if is_long else [shutil.which("clang") or "gcc", "-O0"]
    for command in (["spin", *defines, "-a", "m.pml"],
                    [*compiler, "-w", f"-DMEMLIM={MEMORY_MB}", *compile_flags, "-o", "pan", "pan.c"]):
        done = run(folder, *command)
        if done.returncode != 0:
            return done.stdout, ""
    output = run(folder, "./pan", "-m100000", "-w22", *search_flags).stdout
    trail = ""
    if (folder / "m.pml.trail").exists():
        trail = run(folder, "spin", *defines, "-t", "-p", "m.pml").stdout[-8000:]
    return output, trail


@pytest.fixture(scope="module")
def searches(request, tmp_path_factory):
    """The searches of the tests that were selected, by test, as many at a time as there are processors."""
    features.require("spin")
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        futures = {}
        for item in request.session.items:
            test = getattr(item, "function", None)  # items of other folders may have none
            if test not in (test_protocol_holds, test_sabotage_is_found):
                continue
            case = item.callspec.params
            folder = tmp_path_factory.mktemp("spin")
            if test is test_protocol_holds:
                futures[case["name"]] = pool.submit(search, folder, *CONFIGURATIONS[case["name"]], case["name"] in LONG)
            else:
                rule, model, switches, found = case["sabotage"]
                futures[case["sabotage"]] = pool.submit(
                    search, folder, model, f"{switches} BUG_{rule}", found == ENDLESS)
        yield futures
        for future in futures.values():
            future.cancel()


def number(pattern, output):
    found = re.search(pattern, output)
    assert found, output
    return int(float(found.group(1)))


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.long) if name in FURTHER else name for name in CONFIGURATIONS])
def test_protocol_holds(searches, capsys, name):
    output, trail = searches[name].result()
    if number(r"errors: (\d+)", output) != 0:
        pytest.fail(output + trail, pytrace=False)
    assert not [sign for sign in INCOMPLETE if sign in output], output
    states = number(r"([\d.e+]+) states, stored", output)
    assert states > 10000, output  # a model that stands still has no errors either
    with capsys.disabled():
        depth = number(r"depth reached (\d+)", output)
        print(f"\n{CONFIGURATIONS[name][0]:9} {name:22} {states:9,} states, depth {depth:4}, 0 errors", end=" ")


@pytest.mark.parametrize("sabotage", [*SABOTAGE, *(pytest.param(each, marks=pytest.mark.long) for each in SABOTAGE_AGAIN)],
                         ids=lambda s: f"{s[1]}-{s[0].lower()}-{s[2].replace(' ', ',')}")
def test_sabotage_is_found(searches, sabotage):
    output, trail = searches[sabotage].result()
    assert number(r"errors: (\d+)", output) == 1, output
    assert re.search(sabotage[3], output), output + trail


def test_each_sabotage_is_tried():
    for model in ("publish", "exclusive"):
        known = set(re.findall(r"BUG_([A-Z_]+)", (HERE / f"{model}.pml").read_text())) - {""}
        assert known == {rule for rule, m, *_ in SABOTAGE if m == model}

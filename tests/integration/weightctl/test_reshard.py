"""weightctl sync reshard: the plan, of layouts that a weightd has."""
import json
import math
import random
import re

import pytest

from integration.engines.test_exchange import REPLICATED, Case
from integration.weightctl.test_weightctl import in_terminal, write_safetensors
from lib import gguf

TENSORS = {"a.weight": [8, 6], "b.o_proj.weight": [6, 8], "norm": [10], "odd.weight": [5, 2]}
RULES = [{"tensors": "*.o_proj.*", "from": 0, "to": 1}, {"tensors": "*.weight", "dim": 0},
         {"tensors": "*", "replicated": True}]
GIVEN = ["--ranks", "a b c d", "--onto", "e f", "--dry-run"]


def cut(n, ranks):
    step = -(-n // ranks)
    return [max(0, min(step, n - r * step)) for r in range(ranks)]


def shard(rank, ranks):
    """A rank's shards of TENSORS, all of them split along 0 but for `norm`."""
    return {name: shape if name == "norm" else [cut(shape[0], ranks)[rank], *shape[1:]] for name, shape in TENSORS.items()}


def load(daemon, tmp_path, name, shapes):
    tensors = []
    for tensor, shape in shapes.items():
        count = 1
        for n in shape:
            count *= n
        tensors.append((tensor, "F32", shape, bytes(4 * count)))
    daemon.ctl("load", "-q", name, write_safetensors(tmp_path / f"{name}.safetensors", tensors))


@pytest.fixture
def split(tmp_path):
    path = tmp_path / "split.json"
    path.write_text(json.dumps({"split": RULES}))
    return path


@pytest.fixture
def shards(daemon, tmp_path):
    """A weightd with w-0 to w-3, and all that they are of as `whole`."""
    for rank in range(4):
        load(daemon, tmp_path, f"w-{rank}", shard(rank, 4))
    load(daemon, tmp_path, "whole", TENSORS)
    return daemon


def plan(daemon, split, *args):
    return json.loads(daemon.ctl("sync", "reshard", "--json", "--split", split, *args).stdout)


NAMES = [f"w-{rank}" for rank in range(4)]


def expected():
    """Bytes from each of a to d to each of e and f, by hand."""
    links = {}
    for rank, source in enumerate("abcd"):
        for other, target in enumerate("ef"):
            a = 2 * 6 * 4 if rank // 2 == other else 0
            proj = cut(6, 4)[rank] * 4 * 4  # its rows, half of the columns
            norm = 10 * 4 if rank == other else 0  # in turns
            rows = set(range(2 * rank, 2 * rank + cut(5, 4)[rank])) & set(range(3 * other, 3 * other + cut(5, 2)[other]))
            links[source, target] = a + proj + norm + 2 * 4 * len(rows)
    return {link: n for link, n in links.items() if n}


def test_the_plan_is_what_arithmetic_says(shards, split):
    said = plan(shards, split, *GIVEN, *NAMES)
    assert {(link["from"], link["to"]): link["bytes"] for link in said["links"]} == expected()
    assert all(link["wire"] for link in said["links"])
    total = sum(expected().values())
    assert (said["tensors"], said["total"], said["local"]) == (4, total, 0)
    assert total == 4 * (8 * 6 + 6 * 8 + 2 * 10 + 5 * 2), "each byte of a target once"
    nodes = {node.pop("node"): node for node in said["nodes"]}
    assert list(nodes) == list("abcdef")
    assert nodes["a"] == {"source": shards_bytes(shards, "w-0"), "target": None, "receives": 0, "local": 0,
                          "sends": sum(n for (a, _), n in expected().items() if a == "a")}
    assert (nodes["f"]["source"], nodes["f"]["receives"]) == (None, sum(n for (_, b), n in expected().items() if b == "f"))


def flat_bytes(shapes):
    """Of a version with each tensor at a multiple of 256."""
    return sum(-(-4 * math.prod(shape) // 256) * 256 for shape in shapes.values())


def shards_bytes(daemon, name):
    return json.loads(daemon.ctl("show", "--json", name).stdout)["size"]


def test_what_has_them_whole_says_what_shards_there_would_be(shards, split):
    """All but the size of the shards' versions: those that are there are files, without room between tensors."""
    would_be, there = plan(shards, split, *GIVEN, "whole"), plan(shards, split, *GIVEN, *NAMES)
    for rank in range(4):
        assert would_be["nodes"][rank].pop("source") == flat_bytes(shard(rank, 4))
        assert there["nodes"][rank].pop("source") == shards_bytes(shards, f"w-{rank}")
    assert would_be == there


def test_any_split_over_any_nodes_is_what_a_model_of_elements_says(shards, tmp_path, numpy):
    draw, path = random.Random(7), tmp_path / "any.json"
    for _ in range(40):
        dims = [[draw.choice((REPLICATED, *range(len(shape)))) for _ in "ft"] for shape in TENSORS.values()]
        sources, targets = (draw.sample(range(8), draw.randint(1, 6)) for _ in "st")
        path.write_text(json.dumps({"split": [
            {"tensors": name, **{key: "replicated" if dim is REPLICATED else dim for key, dim in zip(("from", "to"), pair)}}
            for name, pair in zip(TENSORS, dims)]}))
        case = Case(numpy, [(tuple(shape), *pair) for shape, pair in zip(TENSORS.values(), dims)], sources, targets)
        said = plan(shards, path, "--ranks", " ".join(f"n{i}" for i in sources), "--onto",
                    " ".join(f"n{i}" for i in targets), "--dry-run", "whole")
        got = {(int(link["from"][1:]), int(link["to"][1:])): link["bytes"] for link in said["links"]}
        assert got == {link: case.n_bytes(link) for link in case.links}, (path.read_text(), sources, targets)
        for node in said["nodes"]:
            i = int(node["node"][1:])
            whole = shards_bytes(shards, "whole") if len(sources) == 1 else None  # it is the version that is there
            assert node["source"] == (whole or len(case.sources[i]) if i in sources else None), node
            assert node["target"] == (len(case.expected[i]) if i in targets else None), node


def test_what_stays_on_a_node_is_no_traffic(shards, split):
    said = plan(shards, split, "--ranks", "a,b,c,d", "--onto", "a,b,c,d", "--dry-run", *NAMES)
    wire = {(link["from"], link["to"]) for link in said["links"] if link["wire"]}
    assert wire == {(a, b) for a in "abc" for b in "abcd" if a != b}, "the rows of o_proj, of which d has none"
    assert said["local"] == sum(link["bytes"] for link in said["links"] if not link["wire"]) > 0


def test_gather_and_scatter_are_reshards(shards, split):
    gather = plan(shards, split, "--ranks", "a b c d", "--onto", "e", "--dry-run", *NAMES)
    scatter = plan(shards, split, "--ranks", "e", "--onto", "a b c d", "--dry-run", "whole")
    assert gather["nodes"][-1]["target"] == flat_bytes(TENSORS)
    assert scatter["nodes"][0]["source"] == shards_bytes(shards, "whole")
    assert gather["total"] == 4 * (8 * 6 + 6 * 8 + 10 + 5 * 2)
    assert scatter["total"] == 4 * (8 * 6 + 6 * 8 + 4 * 10 + 5 * 2)


def test_tensors_in_blocks_are_refused_by_name(daemon, split, tmp_path):
    gguf.write(tmp_path / "q.gguf", {"a.weight": ("F32", [2, 3], bytes(24)), "b.weight": ("Q4_K", [2, 256], bytes(288))})
    daemon.ctl("load", "-q", "q", tmp_path / "q.gguf")
    done = daemon.ctl("sync", "reshard", "--split", split, "--ranks", "a b", "--onto", "e f", "--dry-run", "q", check=False)
    assert done.returncode == 1
    assert "tensor 'b.weight' (Q4_K) have no size of their own" in done.stderr and "push the buffer" in done.stderr


def test_people_read_tables_of_eighty_columns_and_a_sentence(shards, split):
    text = shards.ctl("sync", "reshard", "--split", split, *GIVEN, *NAMES).stdout
    links, nodes, sentence = text.split("\n\n")
    assert links.splitlines()[0].split() == ["FROM", "TO", "BYTES", "MOVES", "WIRE"]
    assert nodes.splitlines()[0].split() == ["NODE", "SOURCE", "TARGET", "SENDS", "RECEIVES", "LOCAL"]
    assert len(links.splitlines()) == 1 + len(expected()) and len(nodes.splitlines()) == 1 + 6
    assert sentence == f"4 shards to 2 of 4 tensors: {sum(expected().values())} B over {len(expected())} links, 0 B stay " \
                       "on their nodes; nothing was sent\n"
    long = [f"{'x' * 41}{i}" for i in range(6)]
    status, shown = in_terminal(shards, "sync", "reshard", "--split", split, "--ranks", " ".join(long[:4]), "--onto",
                                " ".join(long[4:]), "--dry-run", *NAMES)
    assert status == 0
    # The sentence may be longer: a terminal breaks it.
    assert [line for line in shown.split("\r\n\r\n")[0].splitlines() if len(re.sub("\x1b[^m]*m", "", line)) > 80] == []


def test_columns_can_be_chosen(shards, split):
    said = shards.ctl("sync", "reshard", "--split", split, *GIVEN, "-n", "-o", "FROM,BYTES", *NAMES).stdout
    assert [line.split()[0] for line in said.splitlines()] == [a for a, _ in expected()]


@pytest.mark.parametrize("args, word", (
    (["--ranks", "a b c d", "--onto", "e f", *NAMES], "wants the name of the buffer to make"),
    (["--ranks", "a b c d", "--dry-run", *NAMES], "wants --split, --ranks and --onto"),
    (["--ranks", "a a", "--onto", "e", "--dry-run", "whole"], "'a' is there twice"),
    (["--ranks", "A", "--onto", "e", "--dry-run", "whole"], "'A' cannot be a node"),
    (["--ranks", " ", "--onto", "e", "--dry-run", "whole"], "--ranks wants the names of nodes"),
    (["--ranks", "a b c", "--onto", "e", "--dry-run", "w-0", "w-1"], "the buffer of each of the 3 --ranks"),
    (["--ranks", " ".join(f"n{i}" for i in range(65)), "--onto", "e", "--dry-run", "whole"], "64 nodes at most"),
    (["--ranks", " ".join(f"n{i}" for i in range(64)), "--onto", "e", "--dry-run", "whole"], "65 nodes are more than"),
    ([*GIVEN], "wants")), ids=lambda v: v if isinstance(v, str) else "")
def test_what_makes_no_sense_is_refused_before_anybody_is_asked(daemon, split, args, word):
    done = daemon.ctl("sync", "reshard", "--split", split, *args, check=False)
    assert done.returncode == 2 and word in done.stderr, done.stderr


def refused(daemon, *args):
    done = daemon.ctl("sync", "reshard", *args, check=False)
    assert (done.returncode, done.stdout) == (1, ""), done
    return done.stderr


def test_shards_that_are_of_no_one_model_are_refused_by_name(shards, split, tmp_path):
    why = refused(shards, "--split", split, *GIVEN, "w-0", "w-1", "w-3", "w-2")
    assert "'b.o_proj.weight' is" in why or "'odd.weight' is" in why, why
    assert "as torch.chunk() cuts it" in why
    load(shards, tmp_path, "other", shard(1, 4) | {"norm": [11]})
    assert "'norm' is replicated, but [11] at rank 1 and [10] at rank 0" in \
        refused(shards, "--split", split, *GIVEN, "w-0", "other", "w-2", "w-3")


def test_a_split_that_cannot_be_read_is_named(shards, tmp_path):
    path = tmp_path / "none.json"
    assert f"cannot read '{path}': No such file" in refused(shards, "--split", path, *GIVEN, "whole")
    path.write_text("{")
    assert "none.json: the split is not JSON: line 1" in refused(shards, "--split", path, *GIVEN, "whole")
    path.write_text('{"split": [{"tensors": "*.weight", "dim": 0}]}')
    assert "no rule of the split matches tensor 'norm'" in refused(shards, "--split", path, *GIVEN, "whole")
    path.write_text('{"split": [{"tensors": "*", "dim": 1}]}')
    assert "'norm' is [10], so that it cannot be split along dimension 1" in refused(shards, "--split", path, *GIVEN, "whole")
    path.write_text(" " * ((1 << 20) + 1))
    assert "more than 1 MiB" in refused(shards, "--split", path, *GIVEN, "whole")

"""weightctl load NAME weightd://NODE/NAME: the version of one node, requested by the agent of this node."""
import json
import signal

import pytest
from integration.sync.test_control import ask_as
from lib.engine import planned
from lib.nodes import PATIENCE_S, SIZE, Failed, content, hostile_programs, set_habits, until

NONE = {"data": {"security": "none"}}
RATE = SIZE // 4  # bytes a second: slow enough to be ended on the way
BOTH = "--quiet", "--json"
USAGE = 2


def let_go(node):
    """Removes the buffer there, as a user; its agent does not fetch it again."""
    node.daemon.ctl("rm", "m")
    until(lambda: node.own_head("m")["state"] == "superseded", lambda: f"{node} noted it\n{node.cluster.story()}")


def pull(node, source, *args, **kw):
    return node.ctl("load", "m", f"weightd://{source}", *args, **kw)


def has_nothing(node):
    """Nothing is served, kept or under way; the same version may be pulled again."""
    until(lambda: not any(node.children(f"weightd-sync-{job}") for job in ("local", "tcp")),
          lambda: f"{node} runs nothing\n{node.cluster.story()}")
    until(lambda: json.loads(node.daemon.ctl("ls", "--json").stdout) == {"buffers": [], "jobs": []},
          lambda: node.daemon.ctl("ls", "--json").stdout)
    assert node.serves("m") is None and node.own_head("m")["state"] == "superseded", node.cluster.story()
    return True


def test_a_version_comes_from_the_node_that_is_named(make_nodes):
    """Any that has it, not its publisher alone: every bit, and the bytes that were planned."""
    nodes = make_nodes(3, settings=NONE)
    b = nodes["b"]
    nodes["a"].publish("m", seed=1)
    head = nodes["a"].push("m")
    nodes.settle("m", seed=1)
    assert "1.1 of a, 4.2 MB, was here already" in pull(b, "a/m").stdout
    let_go(b)
    plan = json.loads(pull(b, "c/m", "--dry-run", *BOTH).stdout)
    size = nodes["a"].serves("m").size
    assert (plan["size"], plan["changed"], plan["node"], plan["version"]) == (size, size, "c", None), plan
    assert has_nothing(b)
    done = json.loads(pull(b, f"c/m@{head['term']}.{head['number']}", *BOTH).stdout)
    nodes.settle("m", seed=1)
    assert b.read("m") == content(1, size) and b.serves("m").version == done["version"], done
    assert (done["name"], done["node"], done["group"], done["term"], done["number"]) == \
        ("m", "c", "main", head["term"], head["number"]), done
    assert (done["size"], done["changed"], done["payload"], done["bytes"]) == (size, size, *[planned(size)] * 2), done
    sent = nodes.wait(lambda: [row for row in nodes["c"].history() if row["kind"] == "repair" and
                               row["state"] == "committed"], "c has sent it")
    assert [row["payload"] for row in sent] == [planned(size)], sent
    assert not [row for row in nodes["a"].history() if row["kind"] == "repair"]
    b.daemon.ctl("verify", "m")


def refused(node, *args, code=1, **kw):
    done = node.ctl("load", *args, check=False, **kw)
    assert done.returncode == code, (args, done)
    return done.stderr


def test_what_cannot_be_pulled_is_an_error_that_names_it(make_nodes, require):
    require("root")
    nodes = make_nodes(3, settings=NONE)
    a, b, c = nodes
    a.publish("m", seed=1)
    a.push("m")
    nodes.settle("m", seed=1)
    a.publish("own", seed=2)  # a has not pushed it
    let_go(b)
    for path, error in (("z/m", "sync.conf of b has no peer 'z'"), ("b/m", "b is this node; name another one"),
                        ("a/m@1.2", "a has 1.1 of 'm', and not 1.2")):
        assert error in refused(b, "m", f"weightd://{path}")
    for name in ("own", "none"):
        error = refused(b, name, f"weightd://a/{name}")
        assert f"a has no version of '{name}' that was pushed to a group of b; 'weightctl nodes --buffers' lists" in error
    for args, error in ((("m", "weightd://a"), "is not of the form weightd://NODE/NAME"),
                        (("m", "weightd:///m"), "is not of the form weightd://NODE/NAME"),
                        (("m", "weightd://a/m@1"), "has no version behind the '@'; those of nodes are TERM.NUMBER"),
                        (("n", "weightd://a/m"), "load 'm' from 'weightd://a/m', not 'n'"),
                        (("m", "weightd://a/m", "x.gguf"), "give no other path with it"),
                        (("m", "x.gguf", "weightd://a/m"), "give no other path with it"),
                        (("m", "weightd://a/m", "--mode", "600"), "--mode has no meaning for weightd://NODE/NAME: mode and group"),
                        (("m", "weightd://a/m", "--tp", "0/2"), "--tp has no meaning for weightd://NODE/NAME"),
                        (("m", "weightd://a/m", "--device", "host"), "--device has no meaning"),
                        (("m", "weightd://a/m", "--owner", "0"), "--owner has no meaning")):
        assert error in refused(b, *args, code=USAGE)
    answer = ask_as(Agent(b), 12345, 12345, [], op="pull", buffer="m", node="a")
    assert answer["code"] == "permission" and "uid 12345 may look, not push or pull" in answer["error"], answer
    with pytest.raises(Failed, match="a pull has buffer, node, term, number and dry"):
        b.ask("pull", buffer="m")
    c.stop()
    nodes.wait(lambda: b.peers()["c"]["state"] == "down", "b has lost c")
    assert "c is not connected to b; 'weightctl nodes' shows why" in refused(b, "m", "weightd://c/m")
    assert has_nothing(b)
    pull(b, "a/m")
    assert b.has("m", seed=1)


class Agent:
    """A node as ask_as() takes it."""

    def __init__(self, node):
        self.socket = node.control_socket


def moving(node):
    """Waits until bytes of a repair arrive there. Its row."""
    def look():
        return next((row for row in node.status() if row["kind"] == "repair" and row["phase"] == "bytes" and row["done"]), None)

    return until(look, lambda: f"bytes arrive at {node}\n{node.cluster.story()}")


def test_a_pull_that_ends_early_leaves_nothing(make_nodes):
    """A source that dies, a user that does not wait for it, and a time limit. Then another one succeeds."""
    nodes = make_nodes(3, settings={"data": NONE["data"], "limits": {"repair-rate": RATE}})
    a, b, c = nodes
    a.publish("m", seed=1)
    a.push("m")
    nodes.settle("m", seed=1)
    let_go(b)
    command = "load", "m", "weightd://a/m", "--sync-socket", b.control_socket
    for sig in (signal.SIGINT, signal.SIGKILL):
        loading = b.daemon.spawn(*command)
        moving(b)
        loading.send_signal(sig)
        _, error = loading.communicate(timeout=PATIENCE_S)
        if sig == signal.SIGINT:
            assert loading.returncode == 128 + sig, error
            assert b"interrupted: 'm' was not pulled from a; nothing was published" in error, error
        assert has_nothing(b)
    error = refused(b, "m", "weightd://a/m", "--timeout", "0.5")
    assert "'m' was not pulled from a within 500 ms; nothing was published; load again with more time (--timeout)" in error
    assert has_nothing(b)
    loading = b.daemon.spawn(*command)
    moving(b)
    a.kill()
    _, error = loading.communicate(timeout=PATIENCE_S)
    assert loading.returncode == 1, error
    for part in (b"'m' was not pulled from a: sync ", b"its coordinator a went away", b"load it from another node that has it"):
        assert part in error, error
    assert has_nothing(b)
    assert "1.1 of c" in pull(b, "c/m").stdout
    assert b.has("m", seed=1)


@pytest.mark.plain
def test_bytes_that_nobody_signed_are_not_published(make_nodes, tmp_path):
    """Both nodes agree on them, but for the root that a signed."""
    programs = hostile_programs(tmp_path / "hostile")
    nodes = make_nodes(2, settings=NONE, programs={"b": programs})
    a, b = nodes
    a.publish("m", seed=1)
    a.push("m")
    nodes.settle("m", seed=1)
    let_go(b)
    set_habits(programs, "weightd-sync-tcp", wire=3)
    error = refused(b, "m", "weightd://a/m")
    assert "'m' was not pulled from a: sync " in error and "other bytes came than were signed, again and again" in error, error
    assert has_nothing(b)
    pull(b, "a/m")
    assert b.has("m", seed=1)

"""
weightd-sync under its unit: three machines, set up by weightd-sync(8), and their permissions there.

The whole sandbox of the unit is in force in a box but KeyringMode=, as nspawn has no keyrings. LimitNOFILE= is at most that
of this machine, and nspawn refuses the devices of DevicePolicy= already: neither is proved here.
"""
import contextlib
import random
import re

import pytest
from integration.examples.pages import literals
from lib import box, features
from lib.nodes import until
from systemd import recipe, weights
from systemd.recipe import NODES

SERVICE = "weightd-sync.service"
SIZE = 5_000_000
OVER_GLOO = "[data]\nengine = gloo\nsecurity = none\ntrusted = 10.0.0.0/24\n"


@pytest.fixture(scope="module")
def nodes(make_service, tmp_path_factory):
    """As far as the agents run and found each other. For tests that leave their configuration as it is."""
    features.require("sync", "weightd-sync is not built: no OpenSSL (apt-get install libssl-dev)",
                     (features.BUILD / "weightd-sync").exists())
    features.require("netns")
    folder = tmp_path_factory.mktemp("pki")
    steps = recipe.steps()
    recipe.follow_here(steps.pki, folder)
    with recipe.Nodes(make_service) as made:
        made.pki = folder
        made.copy(folder)
        made.follow(steps.certificates)
        made.follow(steps.users)
        made.configure(steps.conf)
        made.follow(steps.start)
        made.wait_connected()
        yield made


def restart(nodes, conf):
    nodes.configure(conf)
    restart_agents(nodes)


def restart_agents(nodes):
    """All of them: a node that is left alone waits longer before it connects again."""
    for box in nodes.values():
        box.run("systemctl", "restart", SERVICE)
    nodes.wait_connected()


@contextlib.contextmanager
def over_gloo_alone(nodes):
    """The other engine cannot be started."""
    programs = [box.path("/usr/sbin/weightd-sync-tcp") for box in nodes.values()]
    try:
        for program in programs:
            program.chmod(0)
        restart(nodes, recipe.steps().conf + OVER_GLOO)
        yield
    finally:
        for program in programs:
            program.chmod(0o755)
        restart(nodes, recipe.steps().conf)


def provide(nodes, name, seed):
    """The file to load, in a folder, on a."""
    path = nodes["a"].path(f"/srv/{name}")
    path.mkdir(exist_ok=True)
    weights.write_model(nodes["a"], f"/srv/{name}/model.safetensors", random.Random(seed).randbytes(SIZE))


def load(nodes, name, seed):
    provide(nodes, name, seed)
    nodes["a"].run("weightctl", "load", "--quiet", name, f"/srv/{name}", user="alice")
    nodes["a"].run("weightctl", "chown", ":models", name, user="alice")


def push(nodes, name, check=True):
    return nodes["a"].run("weightctl", "sync", "push", name, check=check)


def digests(nodes, name):
    """The digests of each node's newest version: one, if all are the same."""
    return {weights.ask(box, "show", name)["versions"][-1]["digest"] for box in nodes.values()}


def complaint(box, *command, user):
    """The error of a command that has to fail."""
    done = box.run(*command, user=user, check=False)
    assert done.returncode == 1, f"{done.stdout}\n{done.stderr}"
    return done.stderr


def test_three_nodes_are_set_up_as_the_page_tells(nodes):
    """A push of a buffer that only its user may read fails with that reason, and works as soon as the agent may read it."""
    steps = recipe.steps()
    provide(nodes, "llama-8b", seed=1)
    load_it, give_it = steps.load.splitlines(keepends=True)
    nodes.follow(load_it, "a")
    failed = push(nodes, "llama-8b", check=False)
    assert failed.returncode == 1 and "may not read 'llama-8b'" in failed.stderr and \
        "(weightctl chown :GROUP llama-8b)" in failed.stderr, failed.stderr
    nodes.follow(give_it, "a")
    said = nodes.follow(steps.push, "a")["a"]
    assert re.search(r"\bllama-8b\b.*\bcommitted\b", said), said
    for said in nodes.follow(steps.use).values():
        assert "matches digest" in said
    assert len(digests(nodes, "llama-8b")) == 1


def test_only_the_unix_group_of_sync_conf_may_use_what_is_received(nodes):
    load(nodes, "llama-group", seed=2)
    push(nodes, "llama-group")
    for node in "b", "c":
        uid = nodes[node].run("id", "-u", "weightd-sync").stdout.strip()
        gid = nodes[node].run("getent", "group", "models").stdout.split(":")[2]
        shown = nodes[node].run("weightctl", "ls", "--noheadings", "-o", "name,uid,gid,mode").stdout
        assert ["llama-group", uid, gid, "0640"] in map(str.split, shown.splitlines())
        nodes[node].run("weightctl", "verify", "llama-group", user="alice")
        assert "may not read 'llama-group'" in complaint(nodes[node], "weightctl", "verify", "llama-group", user="bob")
        assert "it is for the group 'weightd'" in complaint(nodes[node], "weightctl", "verify", "llama-group", user="mallory")


def test_an_agent_that_is_not_in_the_group_says_so_and_takes_nothing(nodes):
    load(nodes, "llama-out", seed=3)
    nodes["c"].run("gpasswd", "-d", "weightd-sync", "models")
    with nodes["c"].expect(r"\[group main\] group = models: uid \d+, which this runs as, is not in that group"):
        restart(nodes, recipe.steps().conf)
    failed = push(nodes, "llama-out", check=False)
    assert failed.returncode == 1 and "'llama-out' is to belong to the Unix group 'models' on this node" in failed.stderr, failed.stderr
    until(lambda: [weights.names(nodes[node]).count("llama-out") for node in NODES] == [1, 0, 0], "the begun version is removed")
    nodes["c"].run("usermod", "-aG", "models", "weightd-sync")
    restart(nodes, recipe.steps().conf)
    push(nodes, "llama-out")
    assert len(digests(nodes, "llama-out")) == 1


def test_versions_go_over_gloo_too(nodes):
    features.require("gloo")
    load(nodes, "llama-gloo", seed=4)
    with over_gloo_alone(nodes):
        push(nodes, "llama-gloo")
    assert len(digests(nodes, "llama-gloo")) == 1
    nodes["b"].run("weightctl", "verify", "llama-gloo", user="alice")


# Sends a datagram from the service: its unit's filter refuses that at once, where it lets a connection time out.
SEND = """
echo $$ >/sys/fs/cgroup/system.slice/weightd-sync.service/cgroup.procs
exec python3 -c 'import socket, sys
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", (sys.argv[1], 9))' "$1"
"""


def may_send(box, address):
    done = box.run("sh", "-c", SEND, "sh", address, check=False)
    assert done.returncode == 0 or "PermissionError: [Errno 1]" in done.stderr, done.stderr
    return done.returncode == 0


def test_with_the_drop_in_of_the_page_nodes_reach_each_other_and_nothing_else(nodes):
    assert may_send(nodes["a"], "10.0.0.9")
    load(nodes, "llama-alone", seed=5)
    try:
        nodes.follow(recipe.security().drop_in)
        nodes.wait_connected()
        assert [may_send(nodes["a"], address) for address in ("10.0.0.2", "10.0.0.3", "127.0.0.1", "10.0.0.9")] == [True, True, True, False]
        push(nodes, "llama-alone")
        assert len(digests(nodes, "llama-alone")) == 1
    finally:
        for box in nodes.values():
            box.run("rm", f"/etc/systemd/system/{SERVICE}.d/addresses.conf")
            box.run("systemctl", "daemon-reload")
        restart(nodes, recipe.steps().conf)


@pytest.fixture
def scp(nodes, tmp_path):
    """A folder with a program of that name, which copies into the boxes."""
    for node, box in nodes.items():
        (tmp_path / node).symlink_to(box.path("/"))
    (tmp_path / "scp").write_text(f'#!/bin/sh\nexec cp "$1" "{tmp_path}/${{2%%:*}}/${{2#*:}}"\n')
    (tmp_path / "scp").chmod(0o755)
    return tmp_path


def test_the_other_nodes_exclude_a_node_that_is_revoked_as_the_page_tells(nodes, scp):
    """The list is there, and empty, when the agents start: their files name it."""
    lines = recipe.security().revoke
    assert "revoke ./ca c\n" in lines
    recipe.follow_here(lines.replace("revoke ./ca c\n", "revoke ./ca\n"), nodes.pki, scp)
    try:
        nodes.configure(recipe.steps().conf.replace("[tls]\n", "[tls]\ncrl = /etc/weightd/pki/ca.crl\n"), ("a", "b"))
        restart_agents(nodes)
        closed = "node c is down: the certificate of 'c' is revoked"
        with nodes["a"].expect(closed), nodes["b"].expect(closed):
            recipe.follow_here(lines, nodes.pki, scp)
        assert (nodes.states("a"), nodes.states("b")) == ({"b": "up", "c": "down"}, {"a": "up", "c": "down"})
    finally:
        restart(nodes, recipe.steps().conf)


def test_the_timer_of_the_page_writes_metrics(nodes):
    """For a node exporter, whose folder is here; it reads the file as another user."""
    folder, name = "/var/lib/prometheus/node-exporter", "weightd-sync-metrics"
    a = nodes["a"]
    a.run("mkdir", "-p", folder)
    for kind, text in zip(("service", "timer"), literals(recipe.PAGE, "METRICS"), strict=True):
        a.path(f"/etc/systemd/system/{name}.{kind}").write_text(text)
    with a.expect(f"Finished {name}.service"):
        a.run("systemctl", "enable", "--now", f"{name}.timer")
    a.run("systemctl", "disable", "--now", f"{name}.timer")
    text = a.run("cat", f"{folder}/weightd-sync.prom", user="mallory").stdout
    assert sorted(re.findall(r'^weightd_sync_peer_up\{.*peer="(.)".*\} 1$', text, re.M)) == ["b", "c"], text


def test_the_section_of_the_readme_on_tracing_can_be_pasted(nodes):
    """By a user who may use sudo. Nothing has loaded a library with probes there, so the log is empty."""
    features.require("bpf")
    section = re.search(r"^## Tracing\n(.*?)^## ", (features.ROOT / "README.md").read_text(), re.M | re.S)[1]
    lines = re.search(r"^```shell\n(.*?)^```$", section, re.M | re.S)[1]
    a = nodes["a"]
    a.path("/usr/local/bin/sudo").chmod(0o4755)
    load(nodes, "llama-traced", seed=6)
    try:
        done = a.run("env", "USER=alice", f"PATH=/usr/local/bin:{box.PATH}", "bash", "-eux", user="alice",
                     input=lines.replace("minilm", "llama-traced"), timeout=200)
    finally:
        a.path("/usr/local/bin/sudo").chmod(0o755)
        a.run("systemctl", "stop", "weightd-trace")
    assert re.search(r"^llama-traced \S+ on 3 of 3 nodes", done.stdout, re.M), done.stdout + done.stderr
    assert re.search(r"^SYNC +PEER", done.stdout, re.M), done.stdout
    assert "\nCounts by BPF" in done.stdout, done.stdout


def processes(box):
    """[(status, mounts)] as /proc has them, of the agent and of what it runs; None if some ended meanwhile."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        folders = [box.path(f"/proc/{pid}") for pid in box.run("pgrep", "-u", "weightd-sync").stdout.split()]
        found = [(dict(re.findall(r"^(\w+):\s*(.*)$", (f / "status").read_text(), re.M)), (f / "mounts").read_text()) for f in folders]
        # Its watch of weightd, and sources of pushed versions: it keeps them to compare the next with.
        return found if {status["Name"] for status, _ in found} == {"weightd-sync", "weightd-sync-lo"} else None


def test_the_agent_and_what_it_starts_have_no_more_than_the_unit_says(nodes):
    for box in nodes.values():
        for status, mounts in until(lambda: processes(box), "the agent and its watch are there"):
            found = status["Seccomp"], status["NoNewPrivs"], int(status["CapBnd"], 16), int(status["CapEff"], 16)
            assert found == ("2", "1", 0, 0)
            assert re.search(r"^\S+ / \S+ ro,", mounts, re.M) and re.search(r" /var/lib/weightd-sync \S+ rw,", mounts), mounts


def test_a_reload_reads_the_certificates(nodes):
    with nodes["b"].expect("the certificates were read again"):
        nodes["b"].run("systemctl", "reload", SERVICE)


def test_the_service_manager_warns_of_nothing(nodes):
    """As it does where it cannot have a part of the sandbox."""
    for box in nodes.values():
        found = [e["MESSAGE"] for e in box.journal("_PID=1", "PRIORITY=0..4") if SERVICE in str(e.get("UNIT"))]
        assert found == []

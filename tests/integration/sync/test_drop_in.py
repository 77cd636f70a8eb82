"""weightd-sync --print-drop-in: the addresses of sync.conf, as the unit's IPAddressAllow=."""
import pathlib
import re
import shutil
import subprocess

import pytest
from integration.sync.test_agent import sync_only
from lib import features
from lib.features import BUILD
from lib.nodes import PATIENCE_S

__all__ = ["sync_only"]

CONF = """\
[node]
name = a
listen = {listen}
{more}
[tls]
ca = /etc/weightd/pki/ca.crt
certificate = /etc/weightd/pki/a.crt
key = /etc/weightd/pki/a.key
"""


@pytest.fixture
def printed(tmp_path):
    """printed(peers, listen=, more=, command=): (exit status, values of IPAddressAllow=, all of stdout, stderr)."""
    def run(peers, listen="127.0.0.1:7400", more="", command=()):
        path = tmp_path / "sync.conf"
        path.write_text(CONF.format(listen=listen, more=more)
                        + "".join(f"[peer {name}]\naddress = {address}\n" for name, address in peers.items()))
        path.chmod(0o644)
        done = subprocess.run([*command, BUILD / "weightd-sync", "--config", path, "--print-drop-in"], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=PATIENCE_S)
        return done.returncode, re.findall(r"^IPAddressAllow=(.*)$", done.stdout, re.M), done.stdout, done.stderr
    return run


def test_it_has_this_node_and_its_peers_and_denies_all_else(printed):
    status, allowed, text, errors = printed({"b": "10.0.0.2:7400", "c": "[fd00::3]:7400"}, listen="10.0.0.1:7400")
    assert (status, errors) == (0, "")
    assert allowed == ["localhost", "10.0.0.1", "10.0.0.2", "fd00::3"]
    assert "[Service]\nIPAddressDeny=any\n" in text and "# peer c\nIPAddressAllow=fd00::3\n" in text
    assert all(re.match(r"#|\[Service\]$|IPAddress(Allow|Deny)=", line) for line in text.splitlines()), text


def test_it_needs_no_certificates_and_writes_nothing_else(printed, tmp_path):
    before = sorted(tmp_path.iterdir())
    assert printed({"b": "10.0.0.2:7400"})[0] == 0
    assert sorted(set(tmp_path.iterdir()) - set(before)) == [tmp_path / "sync.conf"]


def test_an_agent_that_listens_everywhere_has_its_peers_alone(printed):
    assert printed({"b": "10.0.0.2:7400"}, listen="0.0.0.0:7400", more="data-address = 127.0.0.1")[1] == \
        ["localhost", "127.0.0.0/8", "10.0.0.2"]


def test_a_data_address_stands_for_its_network_where_those_of_the_others_are(printed):
    status, allowed, text, _ = printed({"b": "10.0.0.2:7400"}, listen="10.0.0.1:7400", more="data-address = 10.0.0.1 127.0.0.1")
    assert (status, allowed) == (0, ["localhost", "10.0.0.1", "127.0.0.0/8", "10.0.0.2"])
    assert "# Network of data-address 127.0.0.1, on lo\n" in text


def test_a_data_address_of_no_interface_is_an_error_that_names_it(printed):
    assert printed({"b": "10.0.0.2:7400"}, more="data-address = 192.0.2.77")[::2] == (1, "")
    assert "no interface has [node] data-address 192.0.2.77" in printed({}, more="data-address = 192.0.2.77")[3]


@pytest.fixture
def own_files(tmp_path):
    """own_files(hosts, resolv): words before a command that reads these in the place of /etc/hosts and /etc/resolv.conf."""
    features.require("mounts")

    def make(hosts, resolv):
        for name, text in ("hosts", hosts), ("resolv.conf", resolv):
            (tmp_path / name).write_text(text)
        return ["unshare", "--mount", "sh", "-c", f"mount --bind {tmp_path}/hosts /etc/hosts && "
                f"mount --bind {tmp_path}/resolv.conf {pathlib.Path('/etc/resolv.conf').resolve()} && exec \"$@\"", "sh"]
    return make


def test_a_name_stands_for_its_addresses_and_needs_the_name_servers(printed, own_files):
    command = own_files("127.1.2.3 b.example\n127.1.2.4 b.example\n", "# one\nnameserver 192.0.2.53\nnameserver 192.0.2.54\n")
    status, allowed, text, _ = printed({"b": "b.example:7400", "c": "10.0.0.3:7400"}, command=command)
    assert (status, sorted(allowed)) == (0, sorted(["localhost", "127.0.0.1", "127.1.2.3", "127.1.2.4", "10.0.0.3", "192.0.2.53", "192.0.2.54"]))
    assert "# peer b: addresses of b.example\n" in text and "or when an address of a name does" in text


def test_addresses_in_digits_need_no_name_server(printed, own_files):
    _, allowed, text, _ = printed({"b": "10.0.0.2:7400"}, command=own_files("", "nameserver 192.0.2.53\n"))
    assert allowed == ["localhost", "127.0.0.1", "10.0.0.2"] and "name" not in text.split("[Service]")[1]


def test_a_name_that_cannot_be_resolved_is_an_error_and_nothing_is_printed(printed, own_files):
    status, _, text, errors = printed({"b": "b.invalid:7400"}, command=[*own_files("", ""), "unshare", "--net"])
    assert (status, text) == (1, "")
    assert errors.startswith("weightd-sync: cannot resolve 'b.invalid', the address of [peer b]: ") and "in digits" in errors


def test_an_error_of_the_file_is_reported_instead(printed):
    assert printed({"b": "10.0.0.2"})[::2] == (2, "")
    assert "'address' does not take '10.0.0.2'" in printed({"b": "10.0.0.2"})[3]


def test_output_that_cannot_be_written_is_an_error(printed):
    status, _, _, errors = printed({"b": "10.0.0.2:7400"}, command=["sh", "-c", "exec \"$@\" >/dev/full", "sh"])
    assert status == 1 and "cannot write to standard output: No space left on device" in errors


def test_the_unit_with_it_is_more_secure(printed, tmp_path, root):
    """With the addresses of a few nodes; the unit alone: tests/systemd/test_install.py."""
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd-analyze (apt-get install systemd)")
    unit = tmp_path / "weightd-sync.service"
    text = (root / "packaging/systemd/weightd-sync.service").read_text().replace("@sbindir@", "/usr/sbin")
    unit.write_text(text + printed({"b": "10.0.0.2:7400", "c": "[fd00::3]:7400"})[2])
    done = subprocess.run(["systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=14", unit],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr

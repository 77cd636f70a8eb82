"""weightctl pki: certificates that OpenSSL takes for mutual TLS, and files that no other user can read."""
import datetime
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import threading

import pytest
from lib.daemon import SANITIZER_EXIT, environment
from lib.features import BUILD, require


@pytest.fixture(autouse=True)
def openssl():
    require("openssl", "no openssl (apt-get install openssl)", shutil.which("openssl"))
    linked = b"libcrypto.so" in (BUILD / "weightctl").read_bytes()
    require("libcrypto", "weightctl was built without OpenSSL (apt-get install libssl-dev)", linked)


def pki(*args, check=True, **kw):
    done = subprocess.run([BUILD / "weightctl", "pki", *map(str, args)], env=environment(), stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=60, **kw)
    assert done.returncode not in (SANITIZER_EXIT, -signal.SIGABRT, -signal.SIGSEGV), done.stderr
    assert not check or done.returncode == 0, f"{args}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def refused(*args, **kw):
    """The sentence, which stands alone."""
    done = pki(*args, check=False, **kw)
    assert (done.returncode, done.stdout) == (1, ""), f"{done.returncode}: {done.stdout}{done.stderr}"
    assert re.fullmatch(r"weightctl: [^\n]*\n", done.stderr), done.stderr
    return done.stderr


def show(*args):
    """The certificates in a file, and the exit status."""
    done = pki("show", "--json", *args, check=False)
    assert done.stderr == ""
    return json.loads(done.stdout)["certificates"], done.returncode


def x509(path, *args):
    return subprocess.run(["openssl", "x509", "-in", path, "-noout", *args], capture_output=True, text=True,
                          check=True).stdout


@pytest.fixture
def ca(tmp_path):
    pki("ca", tmp_path / "ca")
    return tmp_path / "ca"


@pytest.fixture
def nodes(ca):
    """The folder of a CA and the nodes a and b."""
    pki("node", ca, "a")
    pki("node", ca, "b")
    return ca


def mode(path):
    return oct(stat.S_IMODE(os.stat(path).st_mode))


def when(path, which):
    text = x509(path, f"-{which}date").split("=")[1].strip()
    return datetime.datetime.strptime(text, "%b %d %H:%M:%S %Y GMT").replace(tzinfo=datetime.timezone.utc)


# --- Made files -----------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_keys_are_their_owners_alone_whatever_the_umask(tmp_path, umask):
    folder = tmp_path / "ca"
    folder.mkdir()  # with the umask of the test
    pki("ca", folder, preexec_fn=lambda: os.umask(umask))
    pki("node", folder, "a", preexec_fn=lambda: os.umask(umask))
    assert {p.name: mode(p) for p in folder.iterdir()} == {
        "ca.key": "0o600", "ca.crt": "0o644", "ca.issued": "0o600", "a.key": "0o600", "a.crt": "0o644"}


def test_a_folder_that_is_made_is_its_owners_alone(ca, tmp_path):
    pki("node", ca, "a", "--out", tmp_path / "a")
    assert (mode(ca), mode(tmp_path / "a")) == ("0o700", "0o700")
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["a.crt", "a.key"]


@pytest.mark.parametrize("purpose", ["sslclient", "sslserver"])
def test_openssl_takes_a_node_strictly(nodes, purpose):
    done = subprocess.run(["openssl", "verify", "-x509_strict", "-CAfile", nodes / "ca.crt", "-purpose", purpose,
                           "-verify_hostname", "a.weightd", nodes / "a.crt"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_openssl_refuses_another_name_and_another_ca(nodes, tmp_path):
    pki("ca", tmp_path / "other")
    for ca, name in ((nodes, "b.weightd"), (tmp_path / "other", "a.weightd")):
        done = subprocess.run(["openssl", "verify", "-CAfile", ca / "ca.crt", "-verify_hostname", name,
                               nodes / "a.crt"], capture_output=True, text=True)
        assert done.returncode != 0, done.stdout


def test_a_node_cannot_issue_certificates(nodes, tmp_path):
    forged = tmp_path / "forged"
    forged.mkdir()
    shutil.copy(nodes / "a.crt", forged / "ca.crt")
    shutil.copy(nodes / "a.key", forged / "ca.key")
    assert "not that of a CA" in refused("node", forged, "b")


def test_the_ca_vouches_for_no_name_outside_of_its_domain(ca, tmp_path):
    key, csr, crt, ext = (tmp_path / n for n in ("k", "csr", "crt", "ext"))
    ext.write_text("subjectAltName=DNS:example.com\nauthorityKeyIdentifier=keyid\n")
    for command in (["genpkey", "-algorithm", "ed25519", "-out", key],
                    ["req", "-new", "-key", key, "-subj", "/CN=x", "-out", csr],
                    ["x509", "-req", "-in", csr, "-CA", ca / "ca.crt", "-CAkey", ca / "ca.key", "-CAcreateserial",
                     "-extfile", ext, "-out", crt]):
        subprocess.run(["openssl", *command], check=True, capture_output=True)
    done = subprocess.run(["openssl", "verify", "-CAfile", ca / "ca.crt", crt], capture_output=True, text=True)
    assert done.returncode != 0 and "permitted subtree" in done.stderr


def test_what_a_certificate_says(nodes):
    text = x509(nodes / "a.crt", "-text")
    assert "ED25519" in text and "DNS:a.weightd\n" in text and "CA:FALSE" in text
    assert "TLS Web Server Authentication, TLS Web Client Authentication" in text
    assert "Version: 3" in text
    serials = {x509(nodes / f"{n}.crt", "-serial") for n in ("ca", "a", "b")}
    assert len(serials) == 3 and min(map(len, serials)) > len("serial=") + 30, serials


def test_the_longest_name_works(ca):
    name = "n" * 42
    pki("node", ca, name)
    [c], status = show(ca / f"{name}.crt")
    assert (c["name"], status) == (name, 0)


def test_validity(nodes):
    now = datetime.datetime.now(datetime.timezone.utc)
    days = {n: (when(nodes / f"{n}.crt", "end") - now).total_seconds() / 86400 for n in ("ca", "a")}
    assert 3649.9 < days["ca"] < 3650.1 and 364.9 < days["a"] < 365.1, days
    for n in ("ca", "a"):
        back = (now - when(nodes / f"{n}.crt", "start")).total_seconds()
        assert 290 < back < 600, back


def test_a_node_does_not_outlive_its_ca(tmp_path):
    short = make_ca(tmp_path / "short", days=10)
    done = pki("node", short, "b")
    assert when(short / "b.crt", "end") == when(short / "ca.crt", "end")
    assert "ends with its CA" in done.stderr


def make_ca(folder, days=10, algorithm="ed25519"):
    """A CA by openssl, for what weightctl would not make."""
    folder.mkdir()
    subprocess.run(["openssl", "req", "-x509", "-newkey", algorithm, "-nodes", "-keyout", folder / "ca.key", "-out",
                    folder / "ca.crt", "-subj", "/CN=other", "-days", str(days), "-addext",
                    "keyUsage=critical,keyCertSign"], check=True, capture_output=True)
    os.chmod(folder / "ca.key", 0o600)
    return folder


# --- Handshakes -----------------------------------------------------------------------------------


def context(folder, name, purpose):
    c = ssl.SSLContext(purpose)
    c.minimum_version = ssl.TLSVersion.TLSv1_3
    c.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
    c.load_verify_locations(folder / "ca.crt")
    c.verify_mode = ssl.CERT_REQUIRED
    c.verify_flags |= ssl.VERIFY_X509_STRICT
    return c


def handshake(folder, expected):
    """a calls `expected`, b answers. Returns the names that each saw, or raises what a got."""
    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    theirs.settimeout(60)
    seen = {}

    def serve():
        try:
            with context(folder, "b", ssl.PROTOCOL_TLS_SERVER).wrap_socket(theirs, server_side=True) as s:
                seen["b"] = s.getpeercert()["subjectAltName"]
                s.sendall(b"x")
        except (ssl.SSLError, OSError):
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with context(folder, "a", ssl.PROTOCOL_TLS_CLIENT).wrap_socket(ours, server_hostname=expected) as s:
            seen["a"], seen["version"] = s.getpeercert()["subjectAltName"], s.version()
            s.recv(1)
    finally:
        ours.close()
        thread.join(60)
    return seen


def test_two_nodes_shake_hands(nodes):
    assert handshake(nodes, "b.weightd") == {"version": "TLSv1.3", "a": (("DNS", "b.weightd"),),
                                             "b": (("DNS", "a.weightd"),)}


def test_a_node_is_not_taken_for_another(nodes):
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(nodes, "c.weightd")


def test_s_server_and_s_client_shake_hands(nodes):
    both = ["-CAfile", nodes / "ca.crt", "-tls1_3", "-x509_strict", "-verify_return_error"]
    server = subprocess.Popen(["openssl", "s_server", "-accept", "127.0.0.1:0", "-naccept", "1", "-Verify", "1", "-cert",
                               nodes / "b.crt", "-key", nodes / "b.key", *both], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        address = next(line.split()[1] for line in server.stdout if line.startswith("ACCEPT "))
        client = subprocess.run(["openssl", "s_client", "-connect", address, "-cert", nodes / "a.crt", "-key",
                                 nodes / "a.key", "-verify_hostname", "b.weightd", *both], input="Q\n",
                                capture_output=True, text=True, timeout=60)
    finally:
        server.kill()
        server.communicate()
    assert client.returncode == 0, client.stdout + client.stderr
    assert "Verify return code: 0 (ok)" in client.stdout and "TLSv1.3" in client.stdout, client.stdout


# --- Refusals -------------------------------------------------------------------------------------


def test_nothing_is_overwritten(nodes):
    def files():
        return {p.name: p.read_bytes() for p in nodes.iterdir() if p.name != "ca.issued"}

    before = files()
    assert "ca.key exists" in refused("ca", nodes)
    assert "a.key exists" in refused("node", nodes, "a")
    (nodes / "a.key").unlink()
    del before["a.key"]
    assert "a.crt exists" in refused("node", nodes, "a")  # and no key stays behind
    assert files() == before


def test_a_link_in_the_way_is_not_followed(ca, tmp_path):
    (ca / "a.key").symlink_to(tmp_path / "elsewhere")
    assert "a.key exists" in refused("node", ca, "a")
    assert not (tmp_path / "elsewhere").exists() and not (ca / "a.crt").exists()


def test_a_folder_that_cannot_be_written(ca, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    assert "Not a directory" in refused("ca", file)
    assert "No such file" in refused("ca", tmp_path / "none" / "ca")
    assert f"{file}: Not a directory" in refused("node", ca, "a", "--out", file)
    assert "weightctl pki ca" in refused("node", tmp_path, "a")
    if os.geteuid():
        ca.chmod(0o500)
        assert "Permission denied" in refused("node", ca, "a")


@pytest.fixture
def full(tmp_path):
    """A folder on a full disk, in a mount namespace of its own: there are tests that look at all mounts."""
    require("mounts")
    (tmp_path / "full").mkdir()
    script = 'mount -t tmpfs -o size=4k,nr_inodes=16 none "$0" && echo mounted && exec cat'
    with subprocess.Popen(["unshare", "--mount", "sh", "-c", script, tmp_path / "full"], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as there:
        require("mount", "cannot mount a tmpfs", there.stdout.readline() == "mounted\n")
        folder = pathlib.Path(f"/proc/{there.pid}/root{tmp_path}/full")
        (folder / "filler").write_bytes(bytes(4096))
        yield folder


def test_a_full_disk_leaves_nothing(ca, full):
    for args in (("ca", full), ("node", ca, "a", "--out", full)):
        assert "No space left on device" in refused(*args)
    assert [p.name for p in full.iterdir()] == ["filler"]


def test_a_key_that_others_can_read_is_not_used(ca):
    (ca / "ca.key").chmod(0o640)
    assert "can be read by others (mode 0640)" in refused("node", ca, "a")


def replace(path, data):
    path.write_bytes(data)


def of_another_ca(ca, name):
    other = ca.parent / "other"
    pki("ca", other)
    replace(ca / name, (other / name).read_bytes())


def with_passphrase(ca):
    text = subprocess.run(["openssl", "pkey", "-in", ca / "ca.key", "-aes256", "-passout", "pass:x"], check=True,
                          capture_output=True).stdout
    replace(ca / "ca.key", text)


@pytest.mark.parametrize("tamper,sentence", [
    (lambda ca: replace(ca / "ca.crt", b""), "no certificate in PEM"),
    (lambda ca: replace(ca / "ca.key", b"garbage\n"), "no private key in PEM"),
    (lambda ca: replace(ca / "ca.key", (ca / "ca.crt").read_bytes()), "no private key in PEM"),
    (lambda ca: replace(ca / "ca.key", b"\0" * 100), "no file of text"),
    (lambda ca: replace(ca / "ca.crt", b"x" * 70000), "File too large"),
    (lambda ca: (ca / "ca.crt").unlink(), "ca.crt is not there"),
    (lambda ca: of_another_ca(ca, "ca.key"), "does not belong to"),
    (lambda ca: of_another_ca(ca, "ca.crt"), "does not belong to"),
    (with_passphrase, "passphrase"),
], ids=lambda x: x if isinstance(x, str) else "")
def test_a_ca_that_was_tampered_with_issues_nothing(ca, tamper, sentence):
    tamper(ca)
    assert sentence in refused("node", ca, "a")
    assert not (ca / "a.key").exists() and not (ca / "a.crt").exists()


def test_a_fifo_in_its_place_is_not_waited_for(ca):
    (ca / "ca.key").unlink()
    os.mkfifo(ca / "ca.key", 0o600)
    assert "no file of text" in refused("node", ca, "a")


def flip_bit(path):
    """In the signature, which is last."""
    text = path.read_text().splitlines()
    last = text[-2]
    at = len(last) // 2
    text[-2] = last[:at] + ("A" if last[at] != "A" else "B") + last[at + 1:]
    path.write_text("\n".join(text) + "\n")


def test_a_changed_ca_certificate_issues_nothing(ca):
    flip_bit(ca / "ca.crt")
    assert "not signed by its own key" in refused("node", ca, "a")


def test_other_kinds_of_keys_are_refused(tmp_path):
    ca = make_ca(tmp_path / "rsa", 10, "rsa:2048")
    assert "Ed25519" in refused("node", ca, "a")


# --- Revoking -------------------------------------------------------------------------------------


def is_revoked(ca, crt):
    done = subprocess.run(["openssl", "verify", "-x509_strict", "-crl_check", "-CAfile", ca / "ca.crt", "-CRLfile", ca / "ca.crl",
                           crt], capture_output=True, text=True)
    assert (done.returncode == 0) != ("certificate revoked" in done.stderr), done.stderr
    return done.returncode != 0


def crl(path, *args):
    return subprocess.run(["openssl", "crl", "-in", path, "-noout", *args], capture_output=True, text=True, check=True).stdout


def test_all_certificates_of_a_node_are_revoked_wherever_they_are(nodes, tmp_path):
    pki("node", nodes, "a", "--out", tmp_path / "again")
    assert "2 more" in pki("revoke", nodes, "a").stdout
    assert [is_revoked(nodes, crt) for crt in (nodes / "a.crt", tmp_path / "again/a.crt", nodes / "b.crt")] == [True, True, False]
    pki("node", nodes, "a", "--out", tmp_path / "new")
    assert not is_revoked(nodes, tmp_path / "new/a.crt")
    assert "1 more" in pki("revoke", nodes, "a").stdout and "0 more" in pki("revoke", nodes, "a").stdout
    assert is_revoked(nodes, tmp_path / "new/a.crt")
    pki("revoke", nodes, "b")
    assert is_revoked(nodes, nodes / "a.crt") and is_revoked(nodes, nodes / "b.crt")


def test_a_list_may_be_empty_and_each_has_a_number_of_its_own(nodes):
    assert "0 more" in pki("revoke", nodes).stdout
    assert not is_revoked(nodes, nodes / "a.crt")
    numbers = [crl(nodes / "ca.crl", "-crlnumber")]
    pki("revoke", nodes, "a")
    numbers.append(crl(nodes / "ca.crl", "-crlnumber"))
    assert numbers == ["crlNumber=0x01\n", "crlNumber=0x02\n"]
    assert mode(nodes / "ca.crl") == "0o644"
    assert crl(nodes / "ca.crl", "-nextupdate").split("=")[1] == x509(nodes / "ca.crt", "-enddate").split("=")[1]


def test_many_at_once_lose_nobodys_line_and_nobodys_list(ca, tmp_path):
    def all_of(verb, *more):
        running = [subprocess.Popen([BUILD / "weightctl", "pki", verb, ca, f"n{i}", *more], env=environment(),
                                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) for i in range(8)]
        assert [p.wait(60) for p in running] == [0] * len(running)

    all_of("node", "--out", tmp_path / "out")
    assert sorted(line.split()[2] for line in (ca / "ca.issued").read_text().splitlines()) == [f"n{i}" for i in range(8)]
    all_of("revoke")
    assert [is_revoked(ca, tmp_path / "out" / f"n{i}.crt") for i in range(8)] == [True] * 8


def test_what_cannot_be_revoked_says_why(nodes, tmp_path):
    assert "ca.issued has no certificate of 'c'; is it the folder of the CA that issued it?" in refused("revoke", nodes, "c")
    assert not (nodes / "ca.crl").exists()
    assert "weightctl pki ca" in refused("revoke", tmp_path, "a")
    pki("ca", tmp_path / "other")
    pki("revoke", tmp_path / "other")
    shutil.copy(tmp_path / "other/ca.crl", nodes / "ca.crl")
    assert "ca.crl is not signed by its key" in refused("revoke", nodes, "a")
    (nodes / "ca.crl").write_text("hello\n")
    assert "ca.crl holds no list of revoked certificates in PEM" in refused("revoke", nodes, "a")
    (nodes / "ca.crl").unlink()
    (nodes / "ca.crl").mkdir()
    assert "cannot read" in refused("revoke", nodes, "a")
    short = make_ca(tmp_path / "short")
    assert "is not for lists of revoked certificates" in refused("revoke", short)


def test_what_cannot_be_written_down_is_not_issued(ca):
    (ca / "ca.issued").mkdir()
    assert "ca.issued: Is a directory" in refused("node", ca, "a")
    assert sorted(p.name for p in ca.iterdir()) == ["ca.crt", "ca.issued", "ca.key"]


# --- show -----------------------------------------------------------------------------------------


def test_show(nodes):
    [c], status = show(nodes / "a.crt", "--ca", nodes / "ca.crt")
    assert status == 0 and c["wrong"] == []
    assert (c["kind"], c["name"]) == ("node", "a")
    fingerprint = x509(nodes / "a.crt", "-fingerprint", "-sha256").split("=")[1].strip().replace(":", "").lower()
    assert c["fingerprint"] == "sha256:" + fingerprint
    assert c["serial"] == x509(nodes / "a.crt", "-serial").split("=")[1].strip()
    assert c["until"] == when(nodes / "a.crt", "end").strftime("%Y-%m-%dT%H:%M:%SZ")
    [of_ca], _ = show(nodes / "ca.crt")
    assert of_ca["kind"] == "ca" and of_ca["issuer"] == of_ca["name"] == c["issuer"]


def test_show_as_text(nodes):
    text = pki("show", nodes / "a.crt").stdout
    assert re.search(r"^NAME +a$", text, re.M) and "WRONG" not in text
    both = nodes / "both"
    both.write_text((nodes / "a.crt").read_text() + "some words\n" + (nodes / "ca.crt").read_text())
    text = pki("show", both).stdout
    assert re.findall(r"^KIND +(\w+)$", text, re.M) == ["node", "ca"]
    assert [line for line in text.splitlines() if len(line) > 100] == []


def test_show_says_what_is_wrong(nodes, tmp_path):
    pki("ca", tmp_path / "other")
    [c], status = show(nodes / "a.crt", "--ca", tmp_path / "other" / "ca.crt")
    assert status == 1 and ["does not vouch" in w for w in c["wrong"]] == [True]
    flip_bit(nodes / "b.crt")
    [c], status = show(nodes / "b.crt", "--ca", nodes / "ca.crt")
    assert status == 1 and any("signature" in w for w in c["wrong"]), c["wrong"]
    done = pki("show", nodes / "b.crt", "--ca", nodes / "ca.crt", check=False)
    assert done.returncode == 1 and re.search(r"^WRONG +the CA does not vouch", done.stdout, re.M)


def make_leaf(tmp_path, subject, *extensions):
    crt = tmp_path / "leaf.crt"
    extra = [a for e in extensions for a in ("-addext", e)]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ed25519", "-nodes", "-keyout", tmp_path / "leaf.key", "-out",
                    crt, "-subj", subject, "-days", "10", "-addext", "basicConstraints=critical,CA:FALSE", *extra],
                   check=True, capture_output=True)
    return crt


@pytest.mark.parametrize("extensions,sentence", [
    ([], "belongs to no node"),
    (["subjectAltName=DNS:a.example"], "belongs to no node"),
    (["subjectAltName=DNS:UPPER.weightd"], "belongs to no node"),
    (["subjectAltName=DNS:.weightd"], "belongs to no node"),
    (["subjectAltName=DNS:a.weightd,DNS:b.weightd"], "several nodes"),
    (["subjectAltName=DNS:a.weightd", "extendedKeyUsage=serverAuth"], "not for both"),
    (["subjectAltName=DNS:a.weightd", "keyUsage=keyAgreement"], "may not sign"),
])
def test_show_says_why_it_is_not_that_of_a_node(tmp_path, extensions, sentence):
    [c], status = show(make_leaf(tmp_path, "/CN=a.weightd", *extensions))
    assert status == 1 and any(sentence in w for w in c["wrong"]), c["wrong"]


def test_show_says_that_it_is_over(tmp_path):
    folder = make_ca(tmp_path / "short", days=1)
    old = tmp_path / "old.crt"
    done = subprocess.run(["openssl", "x509", "-in", folder / "ca.crt", "-signkey", folder / "ca.key", "-days", "-1",
                           "-out", old], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [c], status = show(old)
    assert status == 1 and "it has expired" in c["wrong"], c["wrong"]
    (folder / "ca.crt").write_text(old.read_text())
    assert "has expired" in refused("node", folder, "a")


def test_show_of_what_is_no_certificate(nodes, tmp_path):
    assert "holds a private key" in refused("show", nodes / "a.key")
    assert "No such file" in refused("show", tmp_path / "none")
    assert "Is a directory" in refused("show", tmp_path)
    nothing = tmp_path / "nothing"
    nothing.write_text("words\n")
    assert "holds no certificate" in refused("show", nothing)
    broken = tmp_path / "broken"
    broken.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    assert "broken" in refused("show", broken)


def test_names_from_a_certificate_are_escaped(tmp_path):
    crt = make_leaf(tmp_path, "/CN=evil\x1b[2J\x07\u202e")
    done = pki("show", crt, check=False)
    assert "evil" in done.stdout and not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", done.stdout)

"""weightd-sync-tcp under TLS: the two nodes of a link prove their names, and strangers wait outside."""
import contextlib
import pathlib
import random
import select
import socket
import ssl
import struct

import pytest
from lib import features
from lib.engine import CHUNK, PATIENCE_S, Chain, Engine, Memory, planned, striped
from lib.pki import Authority

TOKEN = "11" * 32
SECRET = b"secret" * 1000
ULP = "/proc/sys/net/ipv4/tcp_available_ulp"
STALL_MS = 4_000  # limit for a peer with a wrong name; that shows at once, unless a process starves


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """It has revoked what it first issued to a and b."""
    features.require("sync", available=(features.BUILD / "weightd-sync-tcp").exists())
    made = Authority(tmp_path_factory.mktemp("pki") / "ca")
    for name in "ab":
        made.fresh(name, "revoked")
        made.revoke(name)
    return made


def revoked(authority, name):
    return tuple(authority.folder / "revoked" / f"{name}.{end}" for end in ("crt", "key"))


@pytest.fixture(scope="module")
def other_authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("other") / "ca")


@pytest.fixture
def fds():
    """fds(CA, (certificate, key)): the three memfds that an agent gives to an engine; the CA's one includes its revocations."""
    memories = []

    def make(authority, pair):
        ca = authority.certificate.read_bytes() + (authority.crl.read_bytes() if authority.crl.exists() else b"")
        three = [Memory(pem) for pem in (ca, *(path.read_bytes() for path in pair))]
        memories.extend(three)
        return [memory.fd for memory in three]

    yield make
    for memory in memories:
        memory.close()


@pytest.mark.parametrize("n_bytes", (0, 1, 16_384, 3 * CHUNK + 7))
@pytest.mark.parametrize("names", ("ab", "abcd"))
def test_every_byte_arrives_and_the_kernel_counts_the_same(authority, fds, names, n_bytes):
    data = random.Random(n_bytes).randbytes(n_bytes)
    pems = {name: fds(authority, authority.node(name)) for name in names}
    with Chain(list(names), Memory(data), fds=pems) as chain:
        chain.start()
        ends = chain.await_done()
        for i in range(len(names) - 1):
            assert chain.memories[i + 1].read() == data
            assert ends[i]["out"] == ends[i + 1]["in"]
            assert ends[i]["out"]["bytes"] == ends[i]["out"]["kernel"] > ends[i]["out"]["payload"] == planned(n_bytes)


@pytest.mark.parametrize("stripes", (1, 2))
def test_a_kernel_that_does_tls_is_given_the_memory_and_not_the_bytes(authority, fds, stripes):
    """None here does: one is played, by OpenSSL. What a link carries is then what the kernel counts, but for the payload."""
    fake = features.BUILD.with_name("build") / "fake/ktls.so"
    features.require("fakes", "the stand-in for kTLS is not built (make fakes)", available=fake.exists())
    features.require("preload", "a sanitizer has to be loaded first", available=features.BUILD.name == "build")
    data = random.Random(3).randbytes(3 * CHUNK + 7)
    pems = {name: fds(authority, authority.node(name)) for name in "abc"}
    with Chain(["a", "b", "c"], Memory(data), fds=pems, stripes=[stripes] * 3, prefix=["env", f"LD_PRELOAD={fake}"]) as chain:
        chain.start()
        ends = chain.await_done()
        assert [memory.read() == data for memory in chain.memories[1:]] == [True, True]
        for i, end in enumerate(ends[:2]):
            assert end["out"]["tls"] == "kernel" and end["out"]["bytes"] == end["out"]["kernel"] > end["out"]["payload"], end
            assert end["out"]["payload"] == (planned(len(data)) if stripes == 1 else striped(len(data), stripes)), end
            assert ends[i + 1]["in"] == end["out"] | {"tls": "openssl"}, ends
            assert f"{'ab'[i]}: the kernel does TLS towards {'bc'[i]}" in chain.engines[i].read_log()


def test_a_kernel_without_tls_is_passed_over_in_silence(authority, fds):
    features.require("kernel without TLS", available="tls" not in pathlib.Path(ULP).read_text().split())
    pems = {name: fds(authority, authority.node(name)) for name in "ab"}
    with Chain(["a", "b"], Memory(SECRET), fds=pems) as chain:
        chain.start()
        ends = chain.await_done()
        assert (ends[0]["out"]["tls"], ends[1]["in"]["tls"]) == ("openssl", "openssl"), ends
        assert chain.engines[0].read_log() == "" and chain.memories[1].read() == SECRET


def test_what_is_on_the_wire_is_not_what_is_in_memory(authority, fds):
    """Seen by a relay that passes the records on, as somebody on the way would."""
    secret = b"attack at dawn!!" * 64
    pems = {name: fds(authority, authority.node(name)) for name in "ab"}
    with Chain(["a", "b"], Memory(secret), fds=pems) as chain, \
            contextlib.closing(socket.create_server(("127.0.0.1", 0))) as middle:
        middle.settimeout(PATIENCE_S)
        chain.engines[1].start()
        chain.engines[0].start(chain.next(0) | {"port": middle.getsockname()[1]})
        seen = pass_on(middle, chain.engines[1].port, chain.engines[0])
        assert chain.engines[1].hear_end()["op"] == "done"
        assert chain.memories[1].read() == secret
    assert len(seen) > len(secret)
    assert secret[:16] not in seen and bytes.fromhex(chain.tokens[1]) not in seen


def pass_on(listener, port, source):
    """Relays between the next connection, the source's, and a port, until the source is done. Returns the bytes."""
    seen = b""
    client, _ = listener.accept()
    with client, socket.create_connection(("127.0.0.1", port), PATIENCE_S) as server:
        others = {client: server, server: client}
        while True:
            readable, _, _ = select.select([*others, source.socket], [], [], PATIENCE_S)
            assert readable, "nothing comes"
            if source.socket in readable:
                message = source.hear()
                if message["op"] != "progress":
                    assert message["op"] == "done", message
                    return seen
            for s in others.keys() & set(readable):
                data = s.recv(65536)
                assert data, "one of them hung up"
                seen += data
                others[s].sendall(data)


def identities(authority, other_authority):
    """Certificates that are not b's, or not valid now, and OpenSSL's error for each."""
    return {
        "another node's": (authority, authority.node("c"), "ostname mismatch"),
        "a name without our suffix": (authority, authority.odd("bare", ["b"]), "ostname mismatch"),
        "a wildcard": (authority, authority.odd("wild", ["*.weightd"]), "ostname mismatch"),
        "expired": (authority, authority.odd("late", ["b.weightd"], days=-1), "expired"),
        "revoked": (authority, revoked(authority, "b"), "revoked"),
        "another CA's": (other_authority, other_authority.node("b"), "certificate"),
    }


@contextlib.contextmanager
def chains(fds, pairs):
    """{kind: a chain from a to b that has begun}, of the certificates {kind: (of a, of b)}: all wait for timers at once."""
    with contextlib.ExitStack() as stack:
        begun = {}
        for kind, (a, b) in pairs.items():
            begun[kind] = stack.enter_context(Chain(["a", "b"], Memory(SECRET), fds={"a": fds(*a), "b": fds(*b)},
                                                    stall_ms=STALL_MS))
        for chain in begun.values():
            chain.start()
        yield begun


def test_a_receiver_that_is_another_is_sent_nothing(authority, other_authority, fds):
    wrong = identities(authority, other_authority)
    with chains(fds, {kind: ((authority, authority.node("a")), (authority, pair))
                      for kind, (_, pair, _) in wrong.items()}) as begun:
        for kind, chain in begun.items():
            end = chain.engines[0].hear_end()
            assert (end["op"], end["from"], end["to"], end["who"]) == ("failed", "a", "b", "b"), (kind, end)
            assert wrong[kind][2] in end["why"], (kind, end)
        for chain in begun.values():
            assert chain.engines[1].hear_end()["op"] == "failed"
            assert chain.memories[1].read() == bytes(len(SECRET))


def test_a_sender_that_is_another_brings_nothing(authority, other_authority, fds):
    wrong = identities(authority, other_authority)
    wrong["expired"] = authority, authority.odd("late-a", ["a.weightd"], days=-1), wrong["expired"][2]
    wrong["revoked"] = authority, revoked(authority, "a"), wrong["revoked"][2]
    wrong["another CA's"] = other_authority, other_authority.node("a"), wrong["another CA's"][2]
    with chains(fds, {kind: ((authority, pair), (authority, authority.node("b")))
                      for kind, (_, pair, _) in wrong.items()}) as begun:
        for kind, chain in begun.items():
            end = chain.engines[1].hear_end()
            assert (end["op"], end["from"], end["who"]) == ("failed", "a", "a"), (kind, end)
            assert "did not connect" in end["why"] and wrong[kind][2] in end["why"], (kind, end)
            assert wrong[kind][2] in chain.engines[1].read_log()
        for chain in begun.values():
            end = chain.engines[0].hear_end()
            assert (end["op"], end["to"], end["who"]) == ("failed", "b", "b"), end
            assert chain.memories[1].read() == bytes(len(SECRET))


@contextlib.contextmanager
def receiver(authority, fds, n_bytes=10):
    memory, engine = Memory(n_bytes), Engine()
    try:
        engine.open(memory, fds=fds(authority, authority.node("b")))
        engine.start()
        yield engine, memory
    finally:
        engine.close()
        memory.close()


def dial(engine, authority=None, pair=None, version=ssl.TLSVersion.TLSv1_3):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = context.maximum_version = version
    if pair:
        context.load_cert_chain(*map(str, pair))
    return context.wrap_socket(socket.create_connection(("127.0.0.1", engine.port), PATIENCE_S))


def preamble(n_bytes, token=TOKEN):
    return b"weightd\1" + bytes.fromhex("00112233445566ff") + struct.pack(">Q", 1) + bytes.fromhex(token) + \
        struct.pack(">Q", n_bytes) + b"a".ljust(64, b"\0") + b"b".ljust(64, b"\0")


def send_stream(engine, pair, data):
    with dial(engine, pair=pair) as s:
        s.sendall(preamble(len(data)))
        assert s.recv(1) == b"\x06"
        s.sendall(data + b"that-all")
        assert s.recv(8) == b"is-there"


def test_strangers_before_the_right_one_keep_it_from_nothing(authority, fds):
    pair = authority.node("a")
    with receiver(authority, fds) as (engine, memory), contextlib.ExitStack() as silent:
        for i in range(40):  # more than there is room for
            s = silent.enter_context(socket.create_connection(("127.0.0.1", engine.port), PATIENCE_S))
            if i % 2:
                s.sendall(b"\x16\x03\x01\x02\x00\x01\x00"[:i % 8])
        with socket.create_connection(("127.0.0.1", engine.port), PATIENCE_S) as s:
            s.sendall(preamble(10))  # without TLS
        with contextlib.suppress(OSError), dial(engine) as s:  # without a certificate
            s.sendall(preamble(10))
            assert s.recv(1) == b""
        with pytest.raises(OSError):
            dial(engine, pair=pair, version=ssl.TLSVersion.TLSv1_2)
        with dial(engine, pair=pair) as s:  # the right name, without the token
            s.sendall(preamble(10, token="22" * 32))
            assert s.recv(1) == b"\x15"
        assert memory.read() == bytes(10)
        send_stream(engine, pair, b"0123456789")
        assert engine.hear_end()["op"] == "done"
        assert memory.read() == b"0123456789"


def test_what_comes_behind_the_end_is_noticed(authority, fds):
    """In the same record, which the kernel does not parse."""
    with receiver(authority, fds) as (engine, _), dial(engine, pair=authority.node("a")) as s:
        s.sendall(preamble(10))
        assert s.recv(1) == b"\x06"
        s.sendall(b"0123456789that-all!")
        end = engine.hear_end()
        assert (end["op"], end["who"]) == ("failed", "a"), end
        assert f"of them {planned(10) + 1} and 9 were payload, and planned were {planned(10)} and 9" in end["why"], end


def test_records_that_were_changed_on_the_way_end_the_stream(authority, fds):
    pems = {name: fds(authority, authority.node(name)) for name in "ab"}
    with Chain(["a", "b"], Memory(bytes(1 << 20)), fds=pems) as chain, \
            contextlib.closing(socket.create_server(("127.0.0.1", 0))) as middle:
        middle.settimeout(PATIENCE_S)
        chain.engines[1].start()
        chain.engines[0].start(chain.next(0) | {"port": middle.getsockname()[1]})
        client, _ = middle.accept()
        with client, socket.create_connection(("127.0.0.1", chain.engines[1].port), PATIENCE_S) as server:
            corrupt(client, server)
            end = chain.engines[1].hear_end()
            assert (end["op"], end["from"], end["who"]) == ("failed", "a", "a"), end
            assert end["done"] < 1 << 20


def corrupt(client, server):
    """Both ways until a record is full of payload, in which one bit is turned."""
    n = 0
    while n < 100_000:
        for s in select.select([client, server], [], [], PATIENCE_S)[0]:
            data = bytearray(s.recv(65536))
            if s is client:
                n += len(data)
                if n >= 100_000:
                    data[-1] ^= 1
            (server if s is client else client).sendall(data)
    client.setblocking(False)
    with contextlib.suppress(OSError):
        while data := client.recv(1 << 20):
            server.sendall(data)


@pytest.mark.parametrize("place, words", ((0, "CA"), (1, "certificate"), (2, "key")))
def test_pem_that_cannot_be_used_is_named(authority, fds, place, words):
    good = fds(authority, authority.node("b"))
    with contextlib.closing(Memory(b"-----BEGIN NONSENSE-----\n")) as bad, \
            contextlib.closing(Memory(10)) as memory, contextlib.closing(Engine()) as engine:
        engine.tell_open(memory, fds=good[:place] + [bad.fd] + good[place + 1:])
        end = engine.hear()
        assert end["op"] == "failed" and f"the PEM of the {words}" in end["why"], end


def test_a_key_of_another_certificate_is_refused(authority, fds):
    pair = authority.node("b")[0], authority.node("a")[1]
    with contextlib.closing(Memory(10)) as memory, contextlib.closing(Engine()) as engine:
        engine.tell_open(memory, fds=fds(authority, pair))
        end = engine.hear()
        assert end["op"] == "failed" and "the key" in end["why"], end

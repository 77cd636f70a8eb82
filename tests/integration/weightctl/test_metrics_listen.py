"""weightctl metrics --listen: a page for Prometheus, also beside clients that want none."""
import contextlib
import http.client
import os
import pathlib
import random
import re
import select
import signal
import socket
import time

import pytest
from integration.weightctl.test_metrics import parse, value
from lib import features
from lib.scene import SLOT, publish
from lib.wire import Wire, stopped, until

HERE = "127.0.0.1"
CONNECTIONS_MAX = 64
PATIENCE_S = 60


@pytest.fixture(autouse=True)
def served():
    features.require("microhttpd")


class Exporter:
    def __init__(self, daemon):
        self.proc = daemon.spawn("metrics", "--listen", f"{HERE}:0", text=True)
        line = self.proc.stdout.readline()
        found = re.fullmatch(rf"http://{HERE}:(\d+)/metrics\n", line)
        assert found, line + self.proc.stderr.read()
        self.port = int(found[1])

    def connect(self, sent=b""):
        s = socket.create_connection((HERE, self.port), timeout=PATIENCE_S)
        s.sendall(sent)
        return s

    def ask(self, path="/metrics", method="GET", body=None):
        """(status, headers, text)."""
        with contextlib.closing(http.client.HTTPConnection(HERE, self.port, timeout=PATIENCE_S)) as c:
            c.request(method, path, body)
            reply = c.getresponse()
            return reply.status, dict(reply.getheaders()), reply.read().decode()

    def metrics(self):
        status, _, text = self.ask()
        assert status == 200, text
        return parse(text)

    def end(self, signum=signal.SIGTERM):
        self.proc.send_signal(signum)
        out, err = self.proc.communicate(timeout=PATIENCE_S)
        return self.proc.returncode, out, err

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.proc.pid}/fd"))

    def rss(self):
        status = pathlib.Path(f"/proc/{self.proc.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024


@pytest.fixture
def exporter(daemon):
    return Exporter(daemon)


def test_a_scrape_is_what_weightd_has_now(daemon, exporter):
    assert value(exporter.metrics(), "weightd_buffers") == 0
    with Wire(daemon.socket) as w:
        publish(w)
    status, headers, text = exporter.ask()
    assert (status, headers["Content-Type"]) == (200, "application/openmetrics-text; version=1.0.0; charset=utf-8")
    assert value(parse(text), "weightd_buffer_bytes", buffer="m", device="host", state="current") == SLOT
    assert parse(text).keys() == parse(daemon.ctl("metrics").stdout).keys()
    until(lambda: value(exporter.metrics(), "weightd_sessions") == 1, "it closes each of its connections")


@pytest.mark.parametrize("method, path, status, text", [
    ("HEAD", "/metrics", 200, ""),
    ("GET", "/", 404, "the page is /metrics\n"),
    ("GET", "/metrics/../../etc/passwd", 404, "the page is /metrics\n"),
    ("POST", "/metrics", 405, "use GET\n"),
    ("DELETE", "/metrics", 405, "use GET\n"),
])
def test_other_requests(exporter, method, path, status, text):
    assert exporter.ask(path, method, "x" * 100000 if method == "POST" else None)[::2] == (status, text)
    assert exporter.metrics()


def test_a_scrape_fails_with_a_sentence_while_weightd_is_down(daemon, exporter):
    daemon.kill()
    status, headers, text = exporter.ask()
    assert (status, headers["Content-Type"]) == (503, "text/plain; charset=utf-8")
    assert text == daemon.ctl("metrics", check=False).stderr.removeprefix("weightctl: ")
    daemon.start()
    assert exporter.metrics()
    assert exporter.end() == (0, "", "")


def test_scrapes_of_a_hung_weightd_wait_once(daemon, exporter):
    """All that wait get one answer: one after the other, they would wait for 5 s each."""
    began = time.monotonic()
    with stopped(daemon), contextlib.ExitStack() as stack:
        for s in [stack.enter_context(exporter.connect(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")) for _ in range(20)]:
            assert b"503 Service Unavailable" in s.recv(65536)
    assert time.monotonic() - began < PATIENCE_S
    assert exporter.metrics()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it(exporter, signum):
    with exporter.connect(b"GET /met"):
        assert exporter.end(signum) == (0, "", "")
        with pytest.raises(ConnectionRefusedError):
            exporter.connect()


@pytest.fixture
def crowd(exporter):
    """crowd(n, sent): as many connections."""
    with contextlib.ExitStack() as stack:
        yield lambda n, sent: [stack.enter_context(exporter.connect(sent)) for _ in range(n)]


@pytest.mark.parametrize("sent", [b"", b"GET /metrics HTTP/1.1\r\nX: ", b"POST /metrics HTTP/1.1\r\nContent-Length: 99999\r\n\r\n"], ids=["idle", "slow", "body"])
def test_a_thousand_connections_stop_no_scrape(exporter, crowd, sent):
    features.require_descriptors(1200)
    exporter.metrics()
    rss = exporter.rss()
    clients = crowd(1000, sent)
    assert exporter.metrics()
    assert exporter.descriptors() < 2 * CONNECTIONS_MAX + 20
    assert exporter.rss() - rss < 8 << 20 or "-" in features.BUILD.name
    ended = select.poll()
    for s in clients:
        ended.register(s, select.POLLRDHUP)
    until(lambda: len(ended.poll(0)) >= 1000 - CONNECTIONS_MAX, "it keeps more than there is room for")


@pytest.mark.parametrize("request_", [
    b"GET /metrics HTTP/1.1\r\nHost: x\r\n" + b"X: " + b"a" * 100000,
    b"GET /" + b"a" * 100000,
    b"".join(b"X%d: a\r\n" % i for i in range(20000)),
    b"\r\n" * 50000,
    random.Random(1).randbytes(100000),
], ids=["header", "path", "headers", "lines", "noise"])
def test_huge_requests_are_refused(exporter, request_):
    with exporter.connect() as s:
        with contextlib.suppress(ConnectionError):
            s.sendall(request_)
        with contextlib.suppress(ConnectionError):
            while s.recv(65536):
                pass
    assert exporter.metrics()


def test_a_reader_that_reads_nothing_holds_up_no_other(exporter, crowd):
    crowd(CONNECTIONS_MAX, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
    assert exporter.metrics()


@pytest.mark.parametrize("address, why", [
    ("9464", "it is no ADDR:PORT, such as 127.0.0.1:9464 or [::1]:9464"),
    ("192.0.2.1:9464", "Cannot assign requested address"),
])
def test_an_address_that_is_none(daemon, address, why):
    done = daemon.ctl("metrics", "--listen", address, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"weightctl: cannot listen at {address}: {why}\n")


def test_a_port_in_use(daemon, exporter):
    done = daemon.ctl("metrics", "--listen", f"{HERE}:{exporter.port}", check=False)
    assert done.returncode == 1 and done.stderr.endswith(": Address already in use\n")


def test_it_writes_no_file_too(daemon, tmp_path):
    done = daemon.ctl("metrics", "--listen", f"{HERE}:0", "--output", tmp_path / "x", check=False)
    assert done.returncode == 2 and "--listen and --output exclude each other" in done.stderr


def test_a_machine_without_the_library(daemon, tmp_path):
    (tmp_path / "libmicrohttpd.so.12").write_text("")
    done = daemon.ctl("metrics", "--listen", f"{HERE}:0", check=False, env={"LD_LIBRARY_PATH": str(tmp_path)})
    assert done.returncode == 1
    assert done.stderr.endswith("libmicrohttpd.so.12: file too short; install it (Debian's package libmicrohttpd12)\n")
    assert parse(daemon.ctl("metrics", env={"LD_LIBRARY_PATH": str(tmp_path)}).stdout)

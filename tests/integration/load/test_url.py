"""Loads from servers: the version is the file, whatever the server does, or a sentence names what it did."""
import json
import os
import random
import signal

import pytest
from integration.load import web
from integration.load.test_early import is_nothing_left
from integration.load.test_load import MIB, check_bytes, check_refused, clean  # noqa: F401
from integration.programs import compiled
from lib import features, safetensors_file
from lib.wire import until

CHUNK = 4 * MIB  # bytes that are fetched at a time, of the version
HEAD = 64 << 10  # those at first, of the file
SECRET = "X-Amz-Signature=53c7e7"
NAME = "/model.safetensors"


@pytest.fixture(autouse=True)
def curl(monkeypatch):
    features.require("curl")
    monkeypatch.setenv("no_proxy", web.HERE)
    for name in "CURL_CA_BUNDLE", "SSL_CERT_FILE":
        monkeypatch.delenv(name, raising=False)


def tensors_of(rng, prefix, sizes):
    return {f"{prefix}.{i}": ("U8", [size], rng.randbytes(size)) for i, size in enumerate(sizes)}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A file, and an index of two shards, one of which has a name that a URL must encode."""
    folder, rng = tmp_path_factory.mktemp("models"), random.Random(5)
    folder.chmod(0o755)
    one = tensors_of(rng, "one", [5, 0, 70001, 3 * MIB, 256, 6 * MIB, 1])
    parts = {"model-1.safetensors": tensors_of(rng, "a", [3, 5 * MIB, 9]),
             "more/model #2.safetensors": tensors_of(rng, "b", [70000, 1, 2 * MIB])}
    (folder / "more").mkdir()
    for name, tensors in (parts | {"model.safetensors": one}).items():
        (folder / name).write_bytes(safetensors_file.pack(tensors))
    weight_map = {tensor: name for name, tensors in parts.items() for tensor in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder, one, {name: t for tensors in parts.values() for name, t in tensors.items()}


@pytest.fixture(scope="module")
def nginx(models, tmp_path_factory):
    features.require("nginx")
    server = web.Nginx(models[0], tmp_path_factory.mktemp("nginx"))
    yield server
    server.close()


@pytest.fixture(scope="module")
def faulty_server(models):
    server = web.Web({NAME: (models[0] / "model.safetensors").read_bytes()})
    yield server
    server.close()


@pytest.fixture
def faulty(faulty_server):
    faulty_server.begin()
    return faulty_server


def range_of(text):
    return tuple(int(n) for n in text.removeprefix("bytes=").split("-"))


def ranges_of(requests):
    return sorted(range_of(text) for text in requests)


# --- Whole loads -----------------------------------------------------------------------------------

def test_a_file_of_nginx_is_loaded_as_it_is_and_each_byte_is_fetched_once(daemon, models, nginx):
    folder, tensors, _ = models
    before = len(nginx.requests())
    done = daemon.ctl("load", "m", f"{nginx.http}{NAME}?{SECRET}")
    requests = nginx.requests()[before:]
    check_bytes(daemon, "m", tensors)
    assert {r[1] for r in requests} == {f"{NAME}?{SECRET}"}
    assert len({r[4] for r in requests}) > 1, "one connection had to do"
    end, size = 0, (folder / "model.safetensors").stat().st_size
    for first, last in ranges_of(r[3] for r in requests):
        assert first == end
        end = min(last + 1, size)
        assert last + 1 - first <= CHUNK
    assert end == size
    stored = daemon.ctl("files", "m", "--json").stdout + daemon.ctl("ls", "--json").stdout
    assert SECRET not in stored + done.stdout + done.stderr
    daemon.ctl("load", "local", folder / "model.safetensors")
    digests = {b["name"]: b["digest"] for b in json.loads(daemon.ctl("ls", "--json").stdout)["buffers"]}
    assert digests["m"] == digests["local"]


def test_an_index_leads_to_shards_beside_it_with_its_query(daemon, models, nginx):
    before = len(nginx.requests())
    url = f"{nginx.http}/model.safetensors.index.json?{SECRET}#part"
    daemon.ctl("load", "m", url)
    check_bytes(daemon, "m", models[2], in_order=False)
    assert {r[1] for r in nginx.requests()[before:]} == {
        f"/{name}?{SECRET}" for name in ("model.safetensors.index.json", "model-1.safetensors", "more/model%20%232.safetensors")}
    daemon.ctl("load", "--exclusive", "flat", url)
    check_bytes(daemon, "flat", models[2], in_order=False)


def test_options_of_loads_are_for_urls_too(daemon, models, nginx):
    folder, tensors, _ = models
    url = f"{nginx.http}{NAME}"
    plans = [json.loads(daemon.ctl("load", "--dry-run", "--json", "m", source).stdout)
             for source in (f"{url}?{SECRET}", folder / "model.safetensors")]
    assert plans[0]["files"][0].pop("path") == url
    plans[1]["files"][0].pop("path")
    assert plans[0] == plans[1]
    daemon.ctl("load", "--include", "one.[25]", "--read", "buffered", "--cache", "drop", "--threads", "2", "some", url)
    check_bytes(daemon, "some", {name: tensors[name] for name in ("one.2", "one.5")}, in_order=False)
    daemon.ctl("load", "--verify", "xxh3", "again", url)
    check_bytes(daemon, "again", tensors)
    check_refused(daemon.ctl("load", "--verify", "sha256", "again", url, check=False), "is not compared, because it is fetched")
    assert "has these tensors" in daemon.ctl("load", "some", "--if-needed", "--include", "one.[25]", url).stdout
    daemon.ctl("load", "both", url, folder / "model-1.safetensors")
    assert len(json.loads(daemon.ctl("tensors", "both", "--json").stdout)["tensors"]) == len(tensors) + 3


def test_casts_are_read_from_a_server(daemon, nginx, models):
    rng, folder = random.Random(6), models[0]
    (folder / "cast.safetensors").write_bytes(safetensors_file.pack({"x": ("F32", [100, 700], rng.randbytes(280000))}))
    for name, source in ("local", folder / "cast.safetensors"), ("m", f"{nginx.http}/cast.safetensors"):
        daemon.ctl("load", "--dtype", "bf16", name, source)
    digests = {b["name"]: b["digest"] for b in json.loads(daemon.ctl("ls", "--json").stdout)["buffers"]}
    assert digests["m"] == digests["local"]


def test_python_loads_a_url(weightd, models, nginx):
    result = weightd.load("m", f"{nginx.http}{NAME}?{SECRET}")
    assert (result.version, result.n_tensors) == (1, len(models[1]))
    with pytest.raises(weightd.Error, match="no such file") as e:
        weightd.load("m", f"{nginx.http}/none.safetensors?{SECRET}")
    assert e.value.errno == 2 and SECRET not in str(e.value)


# --- TLS and redirects -----------------------------------------------------------------------------

@pytest.mark.parametrize("name", ["CURL_CA_BUNDLE", "SSL_CERT_FILE"])
def test_a_certificate_is_checked_with_the_authority_of_the_environment(clean, nginx, name):  # noqa: F811
    url = f"{nginx.https}{NAME}"
    check_refused(clean.ctl("load", "m", url, check=False, env={name: "/etc/ssl/certs/ca-certificates.crt"}), "certificate")
    check_refused(clean.ctl("load", "m", url.replace("127.0.0.1", "127.0.0.2"), check=False, env={name: str(nginx.certificate)}))
    clean.ctl("load", "m", url, env={name: str(nginx.certificate)})
    clean.ctl("rm", "m")


def test_a_redirect_is_followed_once_and_never_from_https_to_http(daemon, models, nginx):
    before = len(nginx.requests())
    daemon.ctl("load", "m", f"{nginx.http}/moved{NAME}")
    check_bytes(daemon, "m", models[1])
    assert [r[1] for r in nginx.requests()[before:]].count(f"/moved{NAME}") == 1
    before = len(nginx.requests())
    done = daemon.ctl("load", "other", f"{nginx.https}/downgraded{NAME}", check=False, env={"CURL_CA_BUNDLE": str(nginx.certificate)})
    check_refused(done, "rotocol", "http")
    assert [r[1] for r in nginx.requests()[before:]] == [f"/downgraded{NAME}"]


def test_a_redirect_that_expires_is_asked_for_again(daemon, models, faulty):
    faulty.files["/led"] = faulty.files[NAME]
    expired = []

    def fault(number, path):
        if path == NAME:
            return "to /led"
        if number > 3 and not expired:
            expired.append(number)
            return 403
        return None

    faulty.begin(fault)
    daemon.ctl("load", "m", f"{faulty.url}{NAME}", "--threads", "1")
    check_bytes(daemon, "m", models[1])
    assert expired and [path for path, _ in faulty.requests].count(NAME) == 2


# --- Servers that fail -----------------------------------------------------------------------------

@pytest.mark.parametrize("fault", [503, 429, 500, "reset", "cut"])
def test_what_passes_is_tried_again_from_the_byte_that_is_missing(daemon, models, faulty, fault):
    faulty.begin(lambda number, path: fault if number in (1, 4) else None)
    daemon.ctl("load", "m", f"{faulty.url}{NAME}", "--threads", "1")
    check_bytes(daemon, "m", models[1])
    ranges = [range_of(text) for _, text in faulty.requests]
    for first, second in (ranges[0:2], ranges[3:5]):
        assert first[1] == second[1]
        assert first[0] == second[0] if isinstance(fault, int) else first[0] < second[0]


def test_a_stalled_server_is_given_up_and_asked_again(daemon, models, faulty):
    faulty.begin(lambda number, path: "stall" if number == 3 else None)
    daemon.ctl("load", "m", f"{faulty.url}{NAME}", "--threads", "1", env={"WEIGHTD_HTTP_TIMEOUT": "1"})
    check_bytes(daemon, "m", models[1])


@pytest.mark.parametrize("fault", [None, "cut"])
def test_a_file_replaced_on_the_server_is_not_mixed_with_the_one_before(clean, faulty, monkeypatch, fault):  # noqa: F811
    """Between two ranges, or two parts of one."""
    before = faulty.files[NAME]
    monkeypatch.setitem(faulty.files, NAME, before)  # it is that again after the test
    last = 4 if fault else 3

    def replace(number, path):
        if number == last:
            faulty.files[NAME] = before[:-1] + bytes([before[-1] ^ 1])
        return fault if number == 3 else None

    faulty.begin(replace)
    check_refused(clean.ctl("load", "m", f"{faulty.url}{NAME}", "--threads", "1", check=False), "it changed on the server", NAME)
    (*_, first), (*_, second) = faulty.requests[last - 2:]
    assert len(faulty.requests) == last
    assert (range_of(first)[1] == range_of(second)[1]) == (fault == "cut")


def test_a_server_that_ends_in_the_middle_of_a_body_ends_the_load(clean, models):  # noqa: F811
    server = web.Web({NAME: (models[0] / "model.safetensors").read_bytes()})
    try:
        def fault(number, path):
            if number == 2:
                server.stop()
            return "cut" if number >= 2 else None

        server.begin(fault)
        done = clean.ctl("load", "m", f"{server.url}{NAME}", "--threads", "1", check=False)
        check_refused(done, "cannot fetch ", NAME, "connect")
        assert len(server.requests) == 2
    finally:
        server.close()


def test_memory_that_runs_out_ends_a_load_though_the_server_stalls(make_daemon):
    full = compiled("full_at.so", (features.ROOT / "tests/integration/preload/full_at.c",), "-shared")
    daemon = make_daemon(env={"LD_PRELOAD": str(full), "FULL_AT": str(32 * MIB)})
    server = web.Web({NAME: safetensors_file.pack({"x": ("U8", [64 * MIB], bytes(64 * MIB))})})
    try:
        server.begin(lambda number, path: "stall" if number > 1 else None)
        done = daemon.ctl("load", "m", f"{server.url}{NAME}", check=False, env={"WEIGHTD_HTTP_TIMEOUT": "600"})
        check_refused(done, "'m' on host needs 67.1 MB, 2.1 MB more than this machine has free")
        until(lambda: is_nothing_left(daemon), "nothing is left")
    finally:
        server.close()


# fault, the first request with it, part of the sentence
LIES = [
    ("changed", 2, "it changed on the server"),
    ("grown", 2, "its size changed"),
    ("unmarked", 1, "neither an ETag nor Last-Modified"),
    ("unmarked", 2, "neither an ETag nor Last-Modified"),
    ("elsewhere", 1, "was asked for bytes 0 to"),
    ("elsewhere", 3, "was asked for bytes"),
    ("unsaid", 1, "without saying which"),
    ("nonsense", 2, "without saying which"),
    ("encoded", 2, "encoded"),
    ("whole", 1, "sends no ranges"),
    ("whole", 2, "sends no ranges"),
    ("long", 2, "more than it was asked for"),
    (403, 1, "a signed URL may have expired"),
    (404, 2, "no such file (status 404)"),
    (416, 2, "no such range"),
    (418, 1, "status 418"),
    ("to /model.safetensors", 1, "redirects"),
    ("to ftp://127.0.0.1/x", 1, "rotocol"),
    ("to file:///etc/passwd", 1, "rotocol"),
]


def test_a_server_that_lies_or_refuses_is_refused(clean, faulty):  # noqa: F811
    for fault, begin, phrase in LIES:
        faulty.begin(lambda number, path, fault=fault, begin=begin: fault if number >= begin else None)
        done = clean.ctl("load", "m", f"{faulty.url}{NAME}?{SECRET}", check=False)
        check_refused(done, phrase, NAME)
        assert SECRET not in done.stderr


def test_a_small_file_may_come_as_a_whole(daemon, faulty):
    tensors = {"x": ("U8", [3], b"abc")}
    faulty.files["/small.safetensors"] = safetensors_file.pack(tensors)
    faulty.begin(lambda number, path: "whole")
    daemon.ctl("load", "m", f"{faulty.url}/small.safetensors")
    check_bytes(daemon, "m", tensors)
    faulty.files["/empty.safetensors"] = b""
    check_refused(daemon.ctl("load", "n", f"{faulty.url}/empty.safetensors", check=False), "empty.safetensors")


def test_an_endless_error_ends_the_load_after_six_tries(clean, faulty):  # noqa: F811
    faulty.begin(lambda number, path: 503)
    check_refused(clean.ctl("load", "m", f"{faulty.url}{NAME}", check=False), "status 503")
    assert len(faulty.requests) == 6


@pytest.mark.parametrize("begin", [1, 2])
def test_an_interrupted_load_leaves_a_stalled_server(clean, models, begin):  # noqa: F811
    server = web.Web({NAME: (models[0] / "model.safetensors").read_bytes()})
    try:
        server.begin(lambda number, path: "stall" if number >= begin else None)
        proc = clean.spawn("load", "m", f"{server.url}{NAME}", text=True)
        assert server.stalled.wait(web.DEADLINE_S)
        proc.send_signal(signal.SIGINT)
        _, errors = proc.communicate(timeout=web.DEADLINE_S)
        assert proc.returncode == 130 and "interrupted: the load was cancelled at " in errors
    finally:
        server.close()


@pytest.mark.parametrize("url, phrase", [
    ("file:///etc/passwd", "'file' URLs cannot be loaded"),
    ("ftp://127.0.0.1/model.safetensors", "'ftp' URLs cannot be loaded"),
    (f"http://name:{SECRET}@127.0.0.1/model.safetensors", "a URL with a user or a password"),
    (f"http://127.0.0.1:99999/x?{SECRET}", "a URL cannot be used"),
    (f"http://127.0.0.1:1/x?{SECRET}", "connect"),
])
def test_urls_that_are_not_used(clean, url, phrase):  # noqa: F811
    done = clean.ctl("load", "m", url, check=False)
    check_refused(done, phrase)
    assert SECRET not in done.stderr


def test_without_libcurl_only_urls_are_refused(daemon, models, tmp_path):
    (tmp_path / "libcurl.so.4").write_text("")
    env = {"LD_LIBRARY_PATH": str(tmp_path)}
    check_refused(daemon.ctl("load", "m", "https://127.0.0.1/x", check=False, env=env), "libcurl.so.4", "libcurl4")
    daemon.ctl("load", "m", models[0] / "model.safetensors", env=env)

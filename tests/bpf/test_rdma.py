"""weightctl trace rdma: the counters of RDMA ports, in a tree like that of sysfs that is made here."""
import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading

import pytest
from lib import features
from lib.tracing import Tracer

from bpf.test_metrics import Metrics
from lib.fake_agent import FakeAgent, pack

END = {"end": True}
COUNTERS = {"port_xmit_data": 250, "port_rcv_data": 25, "port_xmit_packets": 7, "port_rcv_packets": 8, "port_xmit_wait": 9,
            "symbol_error": 1, "link_downed": 2}
HW_COUNTERS = {"out_of_sequence": 30, "packet_seq_err": 400, "np_cnp_sent": 5}
GIDS = ["fe80:0000:0000:0000:b859:9f03:00d4:1234", "0000:0000:0000:0000:0000:0000:0000:0000", "0000:0000:0000:0000:0000:ffff:0a00:0001"]


class Sysfs:
    def __init__(self, path):
        self.path = path

    def port(self, device="mlx5_0", number=1, counters=COUNTERS, hw_counters=HW_COUNTERS, **files):
        folder = self.path / "class/infiniband" / device / "ports" / str(number)
        files = {"state": "4: ACTIVE", "rate": "100 Gb/sec (4X EDR)", "link_layer": "InfiniBand"} | files
        files |= {f"counters/{name}": n for name, n in counters.items()} | {f"hw_counters/{name}": n for name, n in hw_counters.items()}
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(f"{text}\n")
        return folder


@pytest.fixture
def sysfs(tmp_path):
    return Sysfs(tmp_path)


@pytest.fixture
def tracer(sysfs):
    features.require("trace")
    with Tracer("--meter=diag", "--sysfs", sysfs.path) as t:
        yield t


def ctl(tracer, *args, status=0):
    done = subprocess.run([features.BUILD / "weightctl", *args], env=tracer.env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (status, ""), done
    return done.stdout


def ports(tracer):
    return [row for row in tracer.client().ask("rdma") if row["kind"] == "port"]


def test_a_port_says_it_all(sysfs, tracer):
    folder = sysfs.port()
    for i, gid in enumerate(GIDS):
        (folder / "gids").mkdir(exist_ok=True)
        (folder / f"gids/{i}").write_text(f"{gid}\n")
    (folder / "gid_attrs/ndevs").mkdir(parents=True)
    (folder / "gid_attrs/ndevs/0").write_text("ib0\n")
    port, = ports(tracer)
    assert port.pop("ns") > 0
    errors = port.pop("errors")
    assert port == {"kind": "port", "device": "mlx5_0", "port": 1, "link_layer": "InfiniBand", "state": "active",
                    "rate": "100 Gb/sec (4X EDR)", "rate_bits": 100 * 10**9, "netdev": "ib0", "gids": [GIDS[0], GIDS[2]],
                    "xmit_bytes": 1000, "recv_bytes": 100, "xmit_packets": 7, "recv_packets": 8, "xmit_wait": 9,
                    "np_cnp_sent": 5, "np_ecn_marked_roce_packets": None, "rp_cnp_handled": None}
    assert {name: n for name, n in errors.items() if n is not None} == \
        {"symbol_error": 1, "link_downed": 2, "out_of_sequence": 30, "packet_seq_err": 400}
    assert errors["out_of_buffer"] is None and len(errors) == 14


def test_what_is_no_number_is_not_known(sysfs, tracer):
    folder = sysfs.port(rate="fast", state="what?", link_layer="\x1b[31m", counters={
        "port_xmit_data": "-1", "port_rcv_data": str(2**62), "port_xmit_packets": "1 2", "port_rcv_packets": "7" * 4096,
        "port_xmit_wait": "0x10", "symbol_error": str(2**63), "link_downed": "", "port_rcv_errors": "3"})
    os.mkfifo(folder / "counters/port_xmit_discards")  # the other end is never opened
    os.symlink("/dev/zero", folder / "counters/local_link_integrity_errors")
    os.mkdir(folder / "counters/link_error_recovery")
    os.symlink(folder, folder / "counters/excessive_buffer_overrun_errors")
    port, = ports(tracer)
    assert (port["rate"], port["rate_bits"], port["state"], port["link_layer"], port["gids"]) == ("fast", None, "what?", None, [])
    assert [port[key] for key in ("xmit_bytes", "recv_bytes", "xmit_packets", "recv_packets", "xmit_wait")] == [None] * 5
    assert {key for key, n in port["errors"].items() if n is not None} == {"port_rcv_errors", "out_of_sequence", "packet_seq_err"}


def test_a_device_that_counts_under_other_names(sysfs, tracer):
    counts = {"tx_bytes": 1001, "rx_bytes": 2002, "tx_pkts": 3, "rx_pkts": 4}
    sysfs.port("efa_0", counters={}, hw_counters=counts, link_layer="Unspecified")
    sysfs.port("mlx5_0", hw_counters=counts)
    traffic = [[port[f"{way}_{what}"] for what in ("bytes", "packets") for way in ("xmit", "recv")] for port in ports(tracer)]
    assert traffic == [[1001, 2002, 3, 4], [1000, 100, 7, 8]]


@pytest.mark.parametrize("text, bits", [("2.5 Gb/sec (1X SDR)", 2_500_000_000), ("400 Gb/sec (4X NDR)", 400 * 10**9), ("0 Gb/sec", None),
                                        ("1e300 Gb/sec", None), ("inf Gb/sec", None), ("100 Mb/sec", None)])
def test_speeds(sysfs, tracer, text, bits):
    sysfs.port(rate=text)
    assert [port["rate_bits"] for port in ports(tracer)] == [bits]


def test_ports_are_in_order_and_come_and_go(sysfs, tracer):
    for device, number in ("mlx5_10", 1), ("mlx5_2", 2), ("mlx5_2", 1), ("a b", 1), ("mlx5_2", 0), ("mlx5_2", "x"), ("x" * 64, 1):
        sysfs.port(device, number)
    (sysfs.path / "class/infiniband/file").write_text("")
    (sysfs.path / "class/infiniband/empty").mkdir()
    assert [(port["device"], port["port"]) for port in ports(tracer)] == [("mlx5_2", 1), ("mlx5_2", 2), ("mlx5_10", 1)]
    shutil.rmtree(sysfs.path / "class/infiniband/mlx5_2/ports/1")
    os.symlink(sysfs.path / "class/infiniband/mlx5_10", sysfs.path / "class/infiniband/rxe0")  # as they are in sysfs
    os.symlink("nowhere", sysfs.path / "class/infiniband/gone")
    assert [(port["device"], port["port"]) for port in ports(tracer)] == [("mlx5_2", 2), ("mlx5_10", 1), ("rxe0", 1)]


def test_they_are_no_more_than_so_many(sysfs, tracer):
    for i in range(300):
        sysfs.port(f"mlx5_{i}", counters={}, hw_counters={})
    assert len(ports(tracer)) == 256


def test_why_there_is_none(sysfs, tracer):
    path = f"{sysfs.path}/class/infiniband"
    assert ctl(tracer, "trace", "rdma") == f"No ports: there is no {path}\n"
    assert json.loads(ctl(tracer, "trace", "rdma", "--json")) == {"why": f"there is no {path}", "ports": []}
    (sysfs.path / "class").mkdir()
    (sysfs.path / "class/infiniband").touch()
    assert ctl(tracer, "trace", "rdma") == f"No ports: {path} cannot be read: Not a directory\n"
    (sysfs.path / "class/infiniband").unlink()
    (sysfs.path / "class/infiniband/mlx5_0").mkdir(parents=True)
    why = f"no device with a port is in {path}"
    assert ctl(tracer, "trace", "rdma") == f"No ports: {why}\n"
    assert f"\nNo RDMA ports: {why}\n" in ctl(tracer, "trace", "doctor")
    told = json.loads(ctl(tracer, "trace", "doctor", "--json"))
    assert told["rdma"][0] == {"what": "ports", "on": False, "why": why} and told["rdma"][1]["what"] == "qps"
    sysfs.port()
    assert "No RDMA ports" not in ctl(tracer, "trace", "doctor")
    assert json.loads(ctl(tracer, "trace", "doctor", "--json"))["rdma"][0] == {"what": "ports", "on": True, "why": None}


def test_the_table(sysfs, tracer):
    sysfs.port("mlx5_bond_0")
    sysfs.port("rocep1s0f1", 2, state="1: DOWN", link_layer="Ethernet", counters={}, hw_counters={})
    text = ctl(tracer, "trace", "rdma")
    assert [line.split() for line in text.splitlines()] == [
        ["DEVICE", "PORT", "LAYER", "STATE", "SPEED", "SENT", "RECEIVED", "ERRORS"],
        ["mlx5_bond_0", "1", "InfiniBand", "active", "12.5", "GB/s", "1.0", "kB", "100", "B", "433"],
        ["rocep1s0f1", "2", "Ethernet", "down", "12.5", "GB/s", "-", "-", "-"]]
    assert max(map(len, text.splitlines())) <= 80
    assert ctl(tracer, "trace", "rdma", "-n", "-o", "PORT,OUT_OF_SEQUENCE,XMIT_WAIT,OUT_OF_BUFFER").split() == ["1", "30", "9", "-", "2", "-", "-", "-"]
    port, _ = json.loads(ctl(tracer, "trace", "rdma", "--json"))["ports"]
    assert (port["sent"], port["speed"], port["link"], port["packet_seq_err"], port["gid"]) == (1000, 12_500_000_000, "100 Gb/sec (4X EDR)", 400, None)
    assert {name.upper() for name in port} - {"DEVICE", "PORT", "LAYER", "STATE", "SPEED", "SENT", "RECEIVED", "ERRORS", "LINK", "NETDEV", "GID"} == \
        {"XMIT_PACKETS", "RECV_PACKETS", "XMIT_WAIT", "NP_CNP_SENT", "NP_ECN_MARKED_ROCE_PACKETS", "RP_CNP_HANDLED"} | \
        {name.upper() for name in ports(tracer)[0]["errors"]}


def test_metrics_have_what_ports_counted(sysfs, tracer):
    sysfs.port()
    sysfs.port("mlx5_1", 2, state="1: DOWN", rate="?", counters={"port_xmit_data": 3}, hw_counters={})
    metrics = Metrics(tracer).look()
    port = {"device": "mlx5_0", "port": "1"}
    assert [metrics.value(f"rdma_port_{what}_total", direction=way, **port) for what in ("bytes", "packets") for way in ("xmit", "recv")] == \
        [1000, 100, 7, 8]
    assert metrics.sum("rdma_port_errors_total", **port) == 433 and metrics.value("rdma_port_errors_total", event="out_of_buffer", **port) is None
    assert metrics.sum("rdma_port_congestion_events_total") == 14
    assert (metrics.value("rdma_port_up", **port), metrics.value("rdma_port_rate_bytes", **port)) == (1, 12_500_000_000)
    other = {"device": "mlx5_1", "port": "2"}
    assert (metrics.value("rdma_port_up", **other), metrics.value("rdma_port_rate_bytes", **other)) == (0, None)
    assert metrics.sum("rdma_port_bytes_total", **other) == 12 and metrics.sum("rdma_port_errors_total", **other) == 0
    shutil.rmtree(sysfs.path / "class")
    metrics = Metrics(tracer).look()
    assert not [name for name in metrics.before if "rdma" in name]


# --- Below the rows of top --------------------------------------------------------------------------

def test_top_shows_the_rates_of_active_ports(sysfs, tracer):
    sysfs.port()
    sysfs.port("mlx5_1", state="1: DOWN")
    text = ctl(tracer, "top", "--once")
    assert text == "nothing is counted now\n\nmlx5_0/1: - out, - in, of 100 Gb/sec (4X EDR)\n"
    told = json.loads(ctl(tracer, "top", "--once", "--json"))
    assert told["rows"] == [] and told["ports"] == [
        {"device": "mlx5_0", "port": 1, "state": "active", "out": None, "in": None},
        {"device": "mlx5_1", "port": 1, "state": "down", "out": None, "in": None}]
    shutil.rmtree(sysfs.path / "class")
    assert ctl(tracer, "top", "--once") == "nothing is counted now\n"


def test_a_recording_has_the_rates_of_ports(sysfs, tracer):
    folder = sysfs.port()
    with subprocess.Popen([features.BUILD / "weightctl", "trace", "record", "--quiet", "--format", "perfetto"], env=tracer.env,
                          stdout=subprocess.PIPE, text=True) as proc:
        rates = (json.loads(line.rstrip(",\n"))["args"] for line in iter(proc.stdout.readline, "") if '"ph":"C"' in line)
        assert next(rates) == {"out": 0, "in": 0}
        (folder / "counters/port_xmit_data").write_text(str(1 << 41))
        assert next(rate for rate in rates if rate["out"] > 1 << 40)["in"] == 0
        proc.send_signal(signal.SIGINT)
        proc.stdout.read()
    assert proc.returncode == 0


PORT = {"kind": "port", "device": "mlx5_0", "port": 1, "state": "active", "rate": "100 Gb/sec (4X EDR)"}


def answers(*looks):
    """Answers of a tracer with these rows of its ports, one after the other."""
    left = list(looks)

    def rows(connection, request):
        assert request["ports"] is True
        for look in left.pop(0) if len(left) > 1 else left[0]:
            connection.send(pack(PORT | look))
        connection.send(pack(END))
    return contextlib.closing(FakeAgent(rows=rows))


def test_a_rate_is_since_the_look_before():
    looks = [[{"ns": ns * 10**9, "xmit_bytes": sent, "recv_bytes": received}] for ns, sent, received in
             ((1, 1000, 5), (3, 2 * 10**9 + 1000, 5), (4, 0, None))]
    with answers(*looks) as agent, \
            subprocess.Popen([features.BUILD / "weightctl", "top", "--delay", "0.01", "--json", "--trace-socket", agent.path],
                             stdout=subprocess.PIPE, text=True) as proc:
        told = [json.loads(proc.stdout.readline())["ports"][0] for _ in range(3)]
        proc.terminate()
    assert [(port["out"], port["in"]) for port in told] == [(None, None), (10**9, 0), (None, None)], "it counts anew"


def test_who_tells_of_very_many_ports_does_not_hold_it_up():
    look = [{"device": f"made{i}", "ns": 1} for i in range(30_000)]
    with answers(look, [port | {"ns": 10**9 + 1, "xmit_bytes": 7, "recv_bytes": 0} for port in look]) as agent, \
            subprocess.Popen([features.BUILD / "weightctl", "top", "--delay", "0.01", "--json", "--trace-socket", agent.path],
                             stdout=subprocess.PIPE, text=True) as proc:
        watchdog = threading.Timer(30, proc.kill)
        watchdog.start()
        told = [proc.stdout.readline() for _ in range(2)]
        watchdog.cancel()
        proc.terminate()
    assert told[1], "it takes a second"
    assert [port["device"] for port in json.loads(told[1])["ports"]] == [port["device"] for port in look]


def test_a_device_of_any_name_moves_no_cursor():
    with answers([{"device": "\x1b[31m\n", "rate": "\x9b2J", "ns": 1}, {"device": None, "port": "x", "rate": 3}]) as agent:
        done = subprocess.run([features.BUILD / "weightctl", "top", "--once", "--trace-socket", agent.path], capture_output=True, text=True)
        assert done.returncode == 0 and not set(done.stdout) & {"\x1b", "\x9b"} and done.stdout.count("\n") == 4, done


# --- Queue pairs ------------------------------------------------------------------------------------

QP = {"kind": "qp", "device": "mlx5_0", "port": 1, "lqpn": 281, "rqpn": 77, "type": "rc", "state": "rts", "pid": 4711, "comm": "python3",
      "counter": 5}
COUNTER = {"kind": "counter", "device": "mlx5_0", "port": 1, "counter": 5, "mode": "auto", "pid": 4711, "comm": None, "qps": [281, 282],
           "values": {"out_of_sequence": 3, "rx_write_requests": 0}}


def show(rows, *args):
    with contextlib.closing(FakeAgent(rdma=rows + [END])) as agent:
        done = subprocess.run([features.BUILD / "weightctl", "trace", "rdma", "--trace-socket", agent.path, *args],
                              capture_output=True, text=True, check=True)
    return done.stdout


def test_queue_pairs_and_counters_are_shown():
    rows = [QP, QP | {"lqpn": 1, "rqpn": None, "type": "gsi", "pid": None, "comm": "ib_core", "counter": None}, COUNTER,
            {"kind": "rdma", "what": "qps", "on": True, "why": None, "cut": False}]
    text = show(rows, "--qps")
    assert [line.split() for line in text.splitlines()[1:]] == [["mlx5_0", "1", "281", "77", "rc", "rts", "4711", "python3", "5"],
                                                               ["mlx5_0", "1", "1", "-", "gsi", "rts", "-", "ib_core", "-"]]
    assert max(map(len, text.splitlines())) <= 80
    assert json.loads(show(rows, "--qps", "--json"))["qps"][0] == \
        {"device": "mlx5_0", "port": 1, "qp": 281, "peer": 77, "type": "rc", "state": "rts", "pid": 4711, "process": "python3", "counter": 5}
    assert [line.split() for line in show(rows, "--counters").splitlines()[1:]] == [
        ["mlx5_0", "1", "5", "auto", "4711", "-", "2", "out_of_sequence", "3"],
        ["mlx5_0", "1", "5", "auto", "4711", "-", "2", "rx_write_requests", "0"]]
    assert show(rows) == "No ports: there are none now\n"


def test_this_kernel_says_whether_it_has_any(tracer):
    """The answer of this kernel: without InfiniBand, the reason."""
    *_, told = tracer.client().ask("rdma", qps=True)
    assert (told["kind"], told["what"], told["cut"]) == ("rdma", "qps", False)
    if not told["on"]:
        assert told["why"] == "the kernel lists none by netlink: Protocol not supported"
        assert ctl(tracer, "trace", "rdma", "--qps") == f"No queue pairs: {told['why']}\n"

"""weightctl metrics: any reader of OpenMetrics can parse them, and they match what weightd does."""
import pathlib
import re
import subprocess
import time

import pytest
from lib import features
from lib.scene import SLOT, publish
from lib.wire import Refused, Wire, image

ALERTS = features.ROOT / "packaging/prometheus/weightd-alerts.yml"
REASONS = {"permission", "limit", "memory", "descriptors", "keeper"}


def parse(text):
    """{name: {labels: value}} of the samples, as the reference parser of Prometheus reads them; labels as a frozenset."""
    features.require("prometheus")
    from prometheus_client.openmetrics.parser import text_string_to_metric_families
    samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            at = samples.setdefault(sample.name, {})
            labels = frozenset(sample.labels.items())
            assert labels not in at, sample
            at[labels] = sample.value
    return samples


def metrics(daemon, *args):
    return parse(daemon.ctl("metrics", *args).stdout)


def value(samples, name, **labels):
    return samples[name][frozenset(labels.items())]


def promtool(*args, **kw):
    features.require("promtool")
    return subprocess.run(["promtool", *args], capture_output=True, text=True, **kw)


def test_memory_by_state_and_by_buffer(daemon):
    with Wire(daemon.socket) as w, Wire(daemon.socket) as reader:
        publish(w)
        publish(w)
        lease = reader.attach("m")
        samples = metrics(daemon)
        assert value(samples, "weightd_memory_bytes", state="used") == value(samples, "weightd_memory_bytes", state="kept") == SLOT
        assert value(samples, "weightd_buffer_bytes", buffer="m", device="host", state="current") == SLOT
        assert value(samples, "weightd_buffer_bytes", buffer="m", device="host", state="kept") == SLOT
        assert value(samples, "weightd_buffer_readers", buffer="m", device="host", state="current") == 1
        assert (value(samples, "weightd_leases"), value(samples, "weightd_buffers")) == (1, 1)
        assert value(samples, "weightd_sessions") == 3
        reader.forget([lease.layout_fd, lease.head_fd, lease.slot_fd])


def test_the_machine_the_keeper_and_the_start(make_daemon):
    plain, kept = make_daemon(), make_daemon("--keeper")
    samples = metrics(plain)
    (labels, headroom), = samples["weightd_headroom_bytes"].items()
    assert dict(labels).keys() == {"limit"} and 0 < headroom < value(samples, "weightd_machine_memory_bytes")
    assert abs(value(samples, "weightd_start_time_seconds") - time.time()) < 3600
    assert value(samples, "weightd_start_time_seconds") == value(metrics(plain), "weightd_start_time_seconds")
    assert [value(metrics(d), "weightd_keeper_up") for d in (plain, kept)] == [0, 1]
    assert value(metrics(kept), "weightd_store_descriptors") > 0


def test_refusals_by_their_reason(daemon):
    before = metrics(daemon)
    assert {dict(labels)["reason"] for labels in before["weightd_refusals_total"]} == REASONS
    with Wire(daemon.socket) as w, pytest.raises(Refused):
        w.create("m", image([("t", 1 << 50)]))
    after = metrics(daemon)
    assert value(after, "weightd_refusals_total", reason="memory") == 1 + value(before, "weightd_refusals_total", reason="memory")


def histogram(samples, name, **labels):
    """Counts of the buckets in their order, and the count of all."""
    buckets = {float(dict(at)["le"]): n for at, n in samples[f"{name}_bucket"].items() if labels.items() <= dict(at).items()}
    counts = [buckets[le] for le in sorted(buckets)]
    assert counts == sorted(counts) and counts[-1] == value(samples, f"{name}_count", **labels)
    return counts


def test_histograms_grow_with_the_work(daemon):
    before = metrics(daemon)
    with Wire(daemon.socket) as w:
        publish(w)
    after = metrics(daemon)
    assert histogram(after, "weightd_loop_round_seconds")[-1] > histogram(before, "weightd_loop_round_seconds")[-1]
    assert value(after, "weightd_loop_round_seconds_sum") > value(before, "weightd_loop_round_seconds_sum")
    for worker in "check", "free", "seal", "wake":
        assert len(histogram(after, "weightd_worker_step_seconds", worker=worker)) == 13
    assert value(after, "weightd_worker_step_seconds_count", worker="check") > \
        value(before, "weightd_worker_step_seconds_count", worker="check")


def test_a_file_is_replaced_whole(daemon, tmp_path):
    path = tmp_path / "weightd.prom"
    path.write_text("old")
    assert daemon.ctl("metrics", "--output", path).stdout == ""
    assert path.read_text().endswith("# EOF\n") and value(parse(path.read_text()), "weightd_buffers") == 0


def in_text_format(text):
    """The same in the older format, the only one that promtool checks: there a counter's head has its suffix."""
    counters = re.findall(r"^# TYPE (\S+) counter$", text, re.M)
    return re.sub(rf"^# (TYPE|HELP) ({'|'.join(counters)}) ", r"# \1 \2_total ", text, flags=re.M)


def test_promtool_accepts_metrics_and_alerts(daemon):
    with Wire(daemon.socket) as w:
        publish(w)
    done = promtool("check", "metrics", input=in_text_format(daemon.ctl("metrics").stdout))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = promtool("check", "rules", ALERTS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_name_only_metrics_that_there_are(daemon):
    named = set(re.findall(r"\bweightd_\w+", " ".join(re.findall(r"expr: (.*)", pathlib.Path(ALERTS).read_text()))))
    assert named and named <= metrics(daemon).keys()

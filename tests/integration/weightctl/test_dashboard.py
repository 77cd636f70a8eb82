"""The dashboard of Grafana, on a Prometheus that scrapes a weightd."""
import json
import re
import subprocess
import urllib.parse
import urllib.request

import pytest
from integration.weightctl.test_metrics import promtool
from integration.weightctl.test_metrics_listen import Exporter
from lib import features
from lib.scene import publish
from lib.wire import Refused, Wire, image, until

DASHBOARD = features.ROOT / "packaging/prometheus/weightd-dashboard.json"
HERE = "127.0.0.1"
CONFIG = """\
global: {scrape_interval: 500ms, scrape_timeout: 500ms}
scrape_configs: [{job_name: weightd, static_configs: [{targets: ["%s"]}]}]
"""


def queries():
    """{title and letter: query} of all panels, with values for the variables of Grafana."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return {f"{panel['title']} {target['refId']}": target["expr"].replace("$instance", ".*").replace("$__rate_interval", "1m")
            for panel in panels for target in panel["targets"]}


class Prometheus:
    def __init__(self, folder, target):
        (folder / "config.yml").write_text(CONFIG % target)
        self.log = folder / "log"
        with open(self.log, "w") as log:
            self.proc = subprocess.Popen(
                ["prometheus", "--config.file", folder / "config.yml", "--storage.tsdb.path", folder / "data",
                 "--web.listen-address", f"{HERE}:0"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={"GOMAXPROCS": "1"})
        try:
            # It writes either line first.
            until(lambda: self.proc.poll() is None and self.port() and "Server is ready" in self.log.read_text(), self.log.read_text)
        except BaseException:
            self.end()
            raise
        self.url = f"http://{HERE}:{self.port()}"

    def port(self):
        found = re.search(rf'msg="Listening on" address={HERE}:(\d+)', self.log.read_text())
        return found and found[1]

    def value(self, query):
        """Of its only series; None: there is none."""
        with urllib.request.urlopen(f"{self.url}/api/v1/query?query={urllib.parse.quote(query)}") as reply:
            result = json.load(reply)["data"]["result"]
        return float(result[0]["value"][1]) if result else None

    def has(self, query):
        """True for a series with a number. A scrape that took too long leaves none, until the next one."""
        done = promtool("query", "instant", self.url, query)
        assert done.returncode == 0, f"{query}: {done.stdout}{done.stderr}"
        return bool(set(re.findall(r"=> (\S+) @", done.stdout)) - {"NaN"})

    def end(self):
        self.proc.kill()
        self.proc.wait()


@pytest.fixture
def prometheus(daemon, tmp_path):
    features.require("microhttpd")
    features.require("promtool")
    server = Prometheus(tmp_path, f"{HERE}:{Exporter(daemon).port}")
    yield server
    server.end()


def test_each_panel_has_data(daemon, prometheus):
    with Wire(daemon.socket) as w, Wire(daemon.socket) as reader:
        publish(w)
        lease = reader.attach("m")
        until(lambda: prometheus.value("weightd_leases") == 1, "a scrape")
        publish(w)
        with pytest.raises(Refused):
            w.create("n", image([("t", 1 << 50)]))
        until(lambda: prometheus.value('rate(weightd_refusals_total{reason="memory"}[1m]) > 0'), "another one")
        for title, query in queries().items():
            until(lambda: prometheus.has(query), f"{title}: {query}")
        reader.forget([lease.layout_fd, lease.head_fd, lease.slot_fd])
    daemon.kill()
    until(lambda: prometheus.value("up") == 0, "a scrape that fails")
    assert prometheus.value("weightd_leases") is None


def test_panels_share_no_place():
    places = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        at = panel["gridPos"]
        taken = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not taken & places and at["x"] + at["w"] <= 24, panel["title"]
        places |= taken

"""weightd-metrics.service and weightd-metrics-textfile.service: metrics for Prometheus."""
from lib import features
from lib.wire import until

UNIT = "weightd-metrics.service"
TEXTFILE = "weightd-metrics-textfile"
FILE = "/var/lib/prometheus/node-exporter/weightd.prom"
SCRAPE = """
import sys, urllib.request, urllib.error
try:
    with urllib.request.urlopen("http://" + sys.argv[1] + "/metrics") as reply:
        print(reply.status, reply.read().decode())
except urllib.error.HTTPError as e:
    print(e.code, e.read().decode())
except urllib.error.URLError as e:
    print(e.reason)
"""


def scrape(service, address="127.0.0.1:9464"):
    return service.run("python3", "-c", SCRAPE, address).stdout


def start(service, address="127.0.0.1:9464"):
    service.run("systemctl", "start", UNIT)
    until(lambda: scrape(service, address)[:4] == "200 ", lambda: service.run("systemctl", "status", UNIT, check=False).stdout)


def stop_weightd(service):
    service.run("systemctl", "stop", "weightd.socket", "weightd.service")


def test_the_service_serves_metrics(service):
    features.require("microhttpd")
    start(service)
    assert scrape(service).startswith("200 ") and "\nweightd_keeper_up 1\n" in scrape(service)
    stop_weightd(service)
    assert scrape(service).startswith("503 no weightd answers at /run/weightd/weightd.sock")
    service.run("systemctl", "start", "weightd.socket")
    assert scrape(service).startswith("200 ")

    service.path("/etc/weightd").mkdir(exist_ok=True)
    service.path("/etc/weightd/metrics.conf").write_text("LISTEN=127.0.0.1:9465\n")
    service.run("systemctl", "stop", UNIT)
    assert service.show(UNIT, "Result") == "success"
    start(service, "127.0.0.1:9465")
    service.run("systemctl", "stop", UNIT)


def test_the_timer_writes_a_file(service):
    service.run("systemctl", "start", f"{TEXTFILE}.service")
    assert service.show(f"{TEXTFILE}.service", "ConditionResult") == "no"  # no node exporter is here
    service.run("mkdir", "-p", FILE.rpartition("/")[0])
    service.run("systemctl", "start", f"{TEXTFILE}.service")
    assert "\nweightd_keeper_up 1\n" in service.run("cat", FILE, user="mallory").stdout
    stop_weightd(service)
    assert service.run("systemctl", "start", f"{TEXTFILE}.service", check=False).returncode == 1
    assert service.run("ls", "-A", FILE.rpartition("/")[0]).stdout == ""

    service.run("systemctl", "enable", "--now", f"{TEXTFILE}.timer")
    assert service.show(f"{TEXTFILE}.timer", "ActiveState") == "active"
    service.run("systemctl", "disable", "--now", f"{TEXTFILE}.timer")
    service.run("rm", "-r", FILE.rpartition("/")[0])

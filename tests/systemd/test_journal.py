"""Actions on weights, and their users: lines of the journal that a program can query."""
import pytest
from lib.wire import until
from systemd import weights


@pytest.fixture
def service(shared_service):
    return shared_service


def entries(box, action, name):
    return box.journal(f"WEIGHTD_ACTION={action}", f"WEIGHTD_BUFFER={name}")


def test_a_publish_is_written_down(service):
    weights.load(service, "audited", 4096)
    weights.load(service, "audited", 4096, seed=1, user="root", args=("--owner", "alice"))
    uid = service.run("id", "-u", "alice").stdout.strip()
    found = entries(service, "publish", "audited")
    assert [(e["WEIGHTD_VERSION"], e["WEIGHTD_UID"], e["WEIGHTD_DEVICE"]) for e in found] == \
        [("1", uid, "host"), ("2", "0", "host")]
    assert all(int(e["WEIGHTD_PID"]) > 0 and "audited" in e["MESSAGE"] for e in found)
    assert {e["SYSLOG_IDENTIFIER"] for e in found} == {"weightd"}


def test_a_removal_is_written_down(service):
    weights.load(service, "removed", 4096)
    service.run("weightctl", "rm", "removed", user="alice")
    uid = service.run("id", "-u", "alice").stdout.strip()
    assert [e["WEIGHTD_UID"] for e in entries(service, "drop", "removed")] == [uid]


def test_a_refusal_is_written_down_as_a_warning(service):
    weights.load(service, "private", 4096)
    service.run("weightctl", "rm", "private", user="bob", check=False)
    uid = service.run("id", "-u", "bob").stdout.strip()
    found = entries(service, "refuse", "private")
    assert [(e["WEIGHTD_UID"], e["PRIORITY"], e["WEIGHTD_RESULT"]) for e in found] == [(uid, "4", "EACCES")]


def test_what_came_back_after_a_restart_is_written_down(service):
    weights.load(service, "back", 4096)
    service.run("systemctl", "restart", weights.SERVICE)
    assert weights.verify(service) > 0
    assert [e["WEIGHTD_DEVICE"] for e in entries(service, "recover", "back")] == ["host"]


def test_the_catalog_explains_a_line_with_its_fields(service):
    service.run("journalctl", "--update-catalog")
    weights.load(service, "explained", 4096)
    service.run("journalctl", "--sync")
    text = service.run("journalctl", "-x", "--no-pager", "MESSAGE_ID=83c5180f60bf470196c16b8e1e27d7a9").stdout
    for line in ("Subject: Version 1 of explained was published", "Defined-By: weightd", "Documentation: man:weightd(8)",
                 "weightctl rollback explained"):
        assert line in text, text


def test_a_journal_that_stops_holds_up_no_request_and_loses_no_line(service):
    weights.load(service, "stuck", 4096)
    journald = service.show("systemd-journald.service", "MainPID")
    service.run("kill", "-STOP", journald)
    try:
        service.run("sh", "-ec", "for i in $(seq 30); do weightctl chmod 0640 stuck; weightctl chmod 0600 stuck; done", user="alice")
    finally:
        service.run("kill", "-CONT", journald)
    until(lambda: len(entries(service, "chmod", "stuck")) == 60, lambda: entries(service, "chmod", "stuck"))

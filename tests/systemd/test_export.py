"""weightd-export@.service: model directories of a user."""
import hashlib

import pytest
from lib.model_files import data_of, write_model
from lib.wire import until

FOLDER = "/run/weightd-export/alice"
UNIT = "weightd-export@alice.service"


@pytest.fixture
def weights(service, tmp_path):
    """The bytes of the file that buffer m is loaded from, which only alice may read."""
    whole = write_model(tmp_path / "model.safetensors")
    service.path("/var/tmp/model.safetensors").write_bytes(whole)
    service.run("weightctl", "load", "-q", "--mode", "0600", "m", "/var/tmp/model.safetensors", user="alice")
    return whole


def digest(service, path, user="alice"):
    done = service.run("sh", "-c", f"tail -c 8192 {path} | sha256sum", user=user)
    return done.stdout.split()[0]


def export(service, models):
    service.path("/etc/weightd").mkdir(exist_ok=True)
    service.path("/etc/weightd/export-alice.conf").write_text(f'MODELS="{models}"\n')
    service.run("systemctl", "start", UNIT)


def wait_for(service, path):
    until(lambda: service.run("test", "-e", path, user="alice", check=False).returncode == 0,
          lambda: service.run("systemctl", "status", UNIT, check=False).stdout)


def test_the_service_keeps_the_directory_of_a_user(service, weights):
    wanted = hashlib.sha256(data_of(weights)).hexdigest()
    path = f"{FOLDER}/model.safetensors"
    export(service, "m")
    wait_for(service, path)
    assert digest(service, path) == wanted
    assert service.run("cat", path, user="bob", check=False).returncode == 1

    # A holder that is killed is started again in the same place.
    service.run("systemctl", "kill", "--signal=KILL", UNIT)
    until(lambda: service.show(UNIT, "NRestarts") == "1", lambda: service.show(UNIT, "NRestarts"))
    wait_for(service, path)
    assert digest(service, path) == wanted

    service.run("systemctl", "restart", "weightd.service")
    assert digest(service, path) == wanted
    service.run("systemctl", "stop", UNIT)
    assert service.show(UNIT, "Result") == "success"
    assert service.run("test", "-e", FOLDER, check=False).returncode == 1


def test_several_models_have_a_folder_each(service, weights):
    service.run("weightctl", "load", "-q", "org/n", "/var/tmp/model.safetensors", user="alice")
    export(service, "m@1 org/n")
    wait_for(service, f"{FOLDER}/org/n/model.safetensors")
    wanted = hashlib.sha256(data_of(weights)).hexdigest()
    assert digest(service, f"{FOLDER}/m/model.safetensors") == digest(service, f"{FOLDER}/org/n/model.safetensors") == wanted
    service.run("systemctl", "stop", UNIT)

"""The manifests of packaging/kubernetes have the schemas of Kubernetes and of the Prometheus operator, and agree with each other."""
import pathlib
import re
import shutil
import subprocess

import pytest
from lib import features
from integration.containers.pods import MANIFESTS, documents

TOOLS = features.ROOT / "build/kubernetes/bin"
HERE = pathlib.Path(__file__).parent
RELEASES = "1.34.0", "1.37.0"
OWN_KINDS = {"Kustomization", "PodMonitor"}  # of which kubernetes-validate has no schema

pytestmark = pytest.mark.plain


@pytest.fixture(autouse=True)
def with_yaml():
    features.require("yaml")


def names():
    return sorted(str(path.relative_to(MANIFESTS)) for path in MANIFESTS.rglob("*.yaml"))


def pods():
    """(name of the manifest, spec of its pods)"""
    return [(name, d["spec"]["template"]["spec"]) for name in names() for d in documents(name) if "template" in d.get("spec", {})]


def validate(*paths, release=RELEASES[-1]):
    features.require("kubernetes-validate")
    return subprocess.run([TOOLS / "kubernetes-validate", "--strict", "-k", release, *paths], capture_output=True, text=True)


def check_podmonitor(path):
    features.require("kubernetes-validate")
    return subprocess.run([TOOLS / "python", HERE / "check_schema.py", HERE / "podmonitor.schema.json", path], capture_output=True, text=True)


@pytest.mark.parametrize("release", RELEASES)
def test_manifests_are_valid_for_kubernetes(release):
    known = [name for name in names() if not OWN_KINDS & {d["kind"] for d in documents(name)}]
    assert known
    done = validate(*(MANIFESTS / name for name in known), release=release)
    assert done.returncode == 0 and "Couldn't find schema" not in done.stdout + done.stderr, done.stdout + done.stderr


def test_an_unknown_field_would_be_found(tmp_path):
    text = (MANIFESTS / "base/daemonset.yaml").read_text()
    path = tmp_path / "wrong.yaml"
    path.write_text(text.replace("enableServiceLinks: false", "enableServiceLinkz: false"))
    assert path.read_text() != text
    done = validate(path)
    assert done.returncode != 0 and "enableServiceLinkz" in done.stdout + done.stderr


def test_the_podmonitor_is_valid_for_its_operator(tmp_path):
    done = check_podmonitor(MANIFESTS / "monitoring/podmonitor.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    path = tmp_path / "wrong.yaml"
    path.write_text((MANIFESTS / "monitoring/podmonitor.yaml").read_text().replace("interval: 30s", "interval: 30s\n    intervall: 30s"))
    done = check_podmonitor(path)
    assert done.returncode == 1 and "intervall" in done.stdout, done.stdout + done.stderr


def test_the_podmonitor_finds_the_pods_and_their_port():
    [monitor] = documents("monitoring/podmonitor.yaml")
    [daemonset] = documents("base/daemonset.yaml")
    template = daemonset["spec"]["template"]
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    assert wanted <= template["metadata"]["labels"].items()
    ports = [port["name"] for c in template["spec"]["containers"] for port in c.get("ports", [])]
    assert [end["port"] for end in monitor["spec"]["podMetricsEndpoints"]] == ports == ["metrics"]


@pytest.mark.parametrize("folder", ["base", "monitoring", "example"])
def test_a_kustomization_has_all_of_its_folder(folder):
    [kustomization] = documents(f"{folder}/kustomization.yaml")
    files = {path.name for path in (MANIFESTS / folder).iterdir()} - {"kustomization.yaml"}
    assert {name for name in kustomization["resources"] if name.endswith(".yaml")} == files
    for name in kustomization["resources"]:
        assert (MANIFESTS / folder / name).exists(), name
    # The names that it sets are those of the namespace.
    spaces = [d["metadata"]["name"] for name in files for d in documents(f"{folder}/{name}") if d["kind"] == "Namespace"]
    assert spaces in ([kustomization["namespace"]], []) and kustomization["apiVersion"] == "kustomize.config.k8s.io/v1beta1"


@pytest.mark.parametrize("folder", ["base", "monitoring", "example"])
def test_kubectl_builds_it(folder):
    features.require("kubectl", "no kubectl", bool(shutil.which("kubectl")))
    import yaml
    done = subprocess.run(["kubectl", "kustomize", MANIFESTS / folder], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    made = [(d["kind"], d["metadata"].get("namespace")) for d in yaml.safe_load_all(done.stdout)]
    [kustomization] = documents(f"{folder}/kustomization.yaml")
    assert len(made) >= 2 and {space for kind, space in made if kind != "Namespace"} == {kustomization["namespace"]}, made


def test_no_pod_shares_more_with_its_node_than_the_socket_and_models():
    for name, spec in pods():
        assert not {"hostPID", "hostIPC", "hostNetwork", "hostUsers"} & spec.keys(), name
        paths = {v["hostPath"]["path"] for v in spec["volumes"] if "hostPath" in v}
        assert "/run/weightd" in paths and paths <= {"/run/weightd", "/srv/models"}, name
        for c in spec.get("initContainers", []) + spec["containers"]:
            context = c["securityContext"]
            assert "privileged" not in context and context["capabilities"]["drop"] == ["ALL"] and context["readOnlyRootFilesystem"], c["name"]
            assert c["resources"]["limits"]["memory"] and c["resources"]["requests"]["memory"], c["name"]


def test_image_user_and_group_are_the_same_everywhere():
    header = (features.ROOT / "libclient/include/weightd.h").read_text()
    version = ".".join(re.search(rf"WEIGHTD_VERSION_{part} (\d+)", header)[1] for part in ("MAJOR", "MINOR", "PATCH"))
    packed = int(re.search(r"^ID = (\d+)", (features.ROOT / "packaging/pack-image").read_text(), re.M)[1])
    for name, spec in pods():
        assert {c["image"] for c in spec.get("initContainers", []) + spec["containers"]} == {f"weightd:{version}"}, name
        context = spec["securityContext"]
        assert packed in (context["runAsGroup"], *context.get("supplementalGroups", [])), name
        # That user administers weightd.
        assert (context["runAsUser"] == packed) == (name == "base/daemonset.yaml"), name
        assert (context["runAsUser"], context["runAsGroup"]) == (packed, packed) or packed in context["supplementalGroups"], name

"""What deploy/ promises: units and manifests are accepted, and true to the daemons' flags."""
import os
import re
import shutil
import subprocess

import pytest
import yaml

import harness

DEPLOY = harness.ROOT / "deploy"
DAEMONS = ("conductor", "prefill-node", "decode-node")
UNITS = sorted(DEPLOY.glob("systemd/*.service"))
MANIFESTS = sorted(path for path in DEPLOY.glob("kubernetes/*.yaml") if path.name != "kustomization.yaml")


def documents():
    for path in MANIFESTS:
        for document in yaml.safe_load_all(path.read_text()):
            yield path.name, document


def pod_templates():
    for name, document in documents():
        if document["kind"] in ("Deployment", "StatefulSet"):
            yield name, document["spec"]["template"]["spec"]


def daemon(name):
    return str(harness.BUILD / name / f"baton-{name}")


def settings_of(name):
    done = subprocess.run([daemon(name), "--print-config"], capture_output=True, text=True, env={}, check=True)
    return {line.split(" = ")[0] for line in done.stdout.splitlines()}


def test_there_is_a_unit_for_each_daemon():
    assert [path.name for path in UNITS] == sorted(f"baton-{name}.service" for name in DAEMONS)


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_systemd_accepts(unit):
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr.strip(), done.stderr


def test_systemd_verify_can_fail(tmp_path):
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    broken = tmp_path / "baton-conductor.service"
    broken.write_text(UNITS[0].read_text().replace("/usr/bin/env", "/usr/bin/there-is-no-such"))
    assert subprocess.run(["systemd-analyze", "verify", str(broken)], capture_output=True).returncode != 0


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_unit_flags_exist(unit):
    name = unit.stem.removeprefix("baton-")
    line = next(line for line in unit.read_text().splitlines() if line.startswith("ExecStart="))
    assert line.split()[1] == f"baton-{name}"
    flags = re.findall(r"--([\w-]+)", line)
    assert flags
    assert set(flags) <= settings_of(name)


@pytest.mark.parametrize("name, document", list(documents()), ids=lambda value: value if isinstance(value, str) else value["kind"])
def test_manifest_fits_schema(name, document):
    import kubernetes_validate
    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def test_schema_check_can_fail():
    import kubernetes_validate
    _, document = next((n, d) for n, d in documents() if d["kind"] == "StatefulSet")
    document["spec"]["replicas"] = "two"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("name, pod", list(pod_templates()), ids=lambda value: value if isinstance(value, str) else "")
def test_manifest_is_true_to_the_daemon(name, pod):
    (container,) = pod["containers"]
    binary = container["command"][0].removeprefix("baton-")
    assert binary in DAEMONS
    arguments = container["args"]
    flags = [re.match(r"--([\w-]+)=", argument).group(1) for argument in arguments]
    assert set(flags) <= settings_of(binary)
    # The daemon itself takes these values, with the variables filled in as Kubernetes does.
    values = [a.replace("$(POD_NAME)", "pod-0").replace("$(POD_IP)", "10.0.0.1") for a in arguments]
    done = subprocess.run([daemon(binary), *values, "--print-config"], capture_output=True, text=True, env={})
    assert done.returncode == 0, done.stderr
    # Variables, ports and volumes that are used are defined.
    assert set(re.findall(r"\$\((\w+)\)", " ".join(arguments))) <= {one["name"] for one in container["env"]}
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe in ("livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] in ports
        assert container[probe]["httpGet"]["path"] == ("/livez" if probe == "livenessProbe" else "/readyz")
    given = dict(argument[2:].split("=", 1) for argument in arguments)
    for port, number in ports.items():
        flag = {"http": "port"}.get(port, f"{port}-port")
        assert given[flag] == str(number)
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    for flag in ("model", "cluster-key-file"):
        assert any(given[flag].startswith(mount["mountPath"] + "/") for mount in container["volumeMounts"])


def test_services_reach_pods():
    pods = {}
    for _, document in documents():
        if document["kind"] in ("Deployment", "StatefulSet"):
            template = document["spec"]["template"]
            assert document["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
            pods[template["metadata"]["labels"]["app"]] = template["spec"]["containers"][0]
    for _, document in documents():
        if document["kind"] == "Service":
            container = pods[document["spec"]["selector"]["app"]]
            assert {p["targetPort"] for p in document["spec"]["ports"]} <= {p["name"] for p in container["ports"]}


def test_kustomization_names_what_exists():
    kustomization = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())
    assert sorted(kustomization["resources"]) == [path.name for path in MANIFESTS]
    (secret,) = kustomization["secretGenerator"]
    (image,) = kustomization["images"]
    for _, pod in pod_templates():
        volume = next(v for v in pod["volumes"] if "secret" in v)
        assert volume["secret"]["secretName"] == secret["name"]
        assert pod["containers"][0]["image"] == image["name"]
    version = re.search(r"version: '([^']+)'", (harness.ROOT / "meson.build").read_text()).group(1)
    assert image["newTag"] == version


@pytest.mark.parametrize("name", DAEMONS)
def test_sample_is_current(name):
    done = subprocess.run([daemon(name), "--print-sample"], capture_output=True, text=True, env={}, check=True)
    assert (DEPLOY / "config" / f"{name}.conf").read_text() == done.stdout, "run deploy/update"


def test_settings_docs_are_current():
    docs = (harness.ROOT / "docs" / "settings.md").read_text()
    for name in DAEMONS:
        done = subprocess.run([daemon(name), "--print-docs"], capture_output=True, text=True, env={}, check=True)
        assert done.stdout in docs, "run deploy/update"


def test_install(tmp_path):
    """What the units and the image run is what `meson install` installs."""
    done = subprocess.run(["meson", "install", "-C", str(harness.BUILD), "--no-rebuild", "--destdir", str(tmp_path)],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    names = {file for _, _, files in os.walk(tmp_path) for file in files}
    assert {"baton", *(f"baton-{name}" for name in DAEMONS), *(f"baton-{name}.service" for name in DAEMONS)} <= names

"""The manifest of docs/several-nodes.md follows the published schema and needs no privilege; its pods' commands run."""

import copy
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.nodes import JobNode
from tests.guides.test_several_nodes import blocks, check, environment, said_by, two_nodes
from tests.support import ROOT

__all__ = ["environment", "two_nodes"]

USER = 1000
UNITS = {"Gi": 1 << 30, "G": 1 << 30}
Resource = dict[str, Any]


def resources() -> list[Resource]:
    """Returns what the manifest describes."""
    (manifest,) = blocks("Kubernetes", "yaml")
    return list(yaml.safe_load_all(manifest))


def pod() -> Resource:
    """Returns the pods' specification."""
    (job,) = [resource for resource in resources() if resource["kind"] == "Job"]
    spec: Resource = job["spec"]["template"]["spec"]
    return spec


def container() -> Resource:
    (only,) = pod()["containers"]
    found: Resource = only
    return found


def bytes_of(size: str) -> int:
    number, unit = re.fullmatch(r"(\d+)(\w+)", size).groups()  # type: ignore[union-attr]
    return int(number) * UNITS[unit]


def test_the_manifest_follows_the_published_schema() -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate: uv sync --group guides")
    version = kubernetes_validate.latest_version()
    assert [resource["kind"] for resource in resources()] == ["Secret", "Service", "Job"]
    for resource in resources():
        kubernetes_validate.validate(resource, version, strict=True)
        wrong = copy.deepcopy(resource)
        wrong["metadata"]["nom"] = "train"
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, version, strict=True)


def test_the_manifest_needs_no_privilege() -> None:
    """It keeps to the strictest of the standards for pods."""
    of_pod, of_container = pod()["securityContext"], container()["securityContext"]
    assert of_pod["runAsNonRoot"] is True
    assert of_pod["runAsUser"] == USER
    assert of_pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert of_container["allowPrivilegeEscalation"] is False
    assert of_container["capabilities"] == {"drop": ["ALL"]}
    assert of_container["readOnlyRootFilesystem"] is True
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod())
    assert all(set(volume) <= {"name", "persistentVolumeClaim", "emptyDir", "secret"} for volume in pod()["volumes"])


def test_the_manifests_sizes_and_names_fit_together() -> None:
    limits, volumes = container()["resources"]["limits"], {volume.pop("name"): volume for volume in pod()["volumes"]}
    sizes = {name: bytes_of(volume["emptyDir"]["sizeLimit"]) for name, volume in volumes.items() if "emptyDir" in volume}
    (tier, quota) = re.findall(r"--tier (\S+)=(\S+)", container()["command"][-1])[0]
    mounts = {mount["name"]: mount["mountPath"] for mount in container()["volumeMounts"]}
    assert Path(tier).parent == Path(mounts["scratch"])
    assert bytes_of(quota) < sizes["scratch"]
    assert sizes["scratch"] + sizes["temporary"] <= bytes_of(limits["ephemeral-storage"])
    assert volumes["memory"]["emptyDir"]["medium"] == "Memory"
    assert mounts["memory"] == "/dev/shm"  # noqa: S108
    assert sizes["memory"] <= bytes_of(limits["memory"]) // 2
    assert set(mounts) == set(volumes)
    secret, service, job = resources()
    assert volumes["secret"]["secret"]["secretName"] == secret["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    variables = {variable["name"]: variable.get("value") for variable in container()["env"]}
    first = f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert (variables["PET_MASTER_ADDR"], variables["MASTER_ADDR"], pod()["subdomain"]) == (first, first, service["metadata"]["name"])
    assert variables["PET_NNODES"] == str(job["spec"]["completions"]) == str(job["spec"]["parallelism"])
    assert Path(str(variables["FOREBAY_PEERS_SECRET"])).parent == Path(mounts["secret"])
    assert variables["FOREBAY_PEERS_DIR"] == mounts["meeting"]


def opened(paths: Sequence[Path], stage: Path) -> str:
    """Returns commands for a mount namespace in which every user can enter directories below private ones."""
    hidden = [(path, [parent for parent in path.parents if not parent.stat().st_mode & stat.S_IXOTH]) for path in paths]
    private = {shlex.quote(str(path)): shlex.quote(str(above[-1])) for path, above in hidden if above}
    places = {path: shlex.quote(str(stage / str(number))) for number, path in enumerate(private)}
    commands = [f"mkdir -p {place} && mount --bind {path} {place}" for path, place in places.items()]
    commands += [f"mount -t tmpfs -o mode=755 none {above}" for above in sorted(set(private.values()))]
    commands += [f"mkdir -p {path} && mount --bind {place} {path}" for path, place in places.items()]
    return "".join(f"{command} && " for command in commands)


def start_pod(job: Sequence[JobNode], node: JobNode, environment: dict[str, str]) -> "subprocess.Popen[str]":
    """Starts the container's command on a node as its user, with the manifest's variables and no capability.

    Volumes are directories as Kubernetes makes them: of root, for the group to write.
    """
    places = {"/meeting": str(job[0].shared / "meeting"), "/scratch": str(node.root / "scratch"), "/data": str(job[0].data)}
    places |= {"/etc/forebay-secret/secret": str(job[0].shared / "secret"), "/app/train.py": str(job[0].shared / "train.py")}
    places |= {"train-0.train": job[0].name, "=100G": "=1G"}
    (node.root / "scratch").mkdir()
    shutil.chown(node.root / "scratch", 0, USER)
    (node.root / "scratch").chmod(0o2777)

    def here(text: str) -> str:
        for place, found in places.items():
            text = text.replace(place, found)
        return text

    own = {variable["name"]: here(variable["value"]) for variable in container()["env"] if "value" in variable}
    own |= {"PET_NODE_RANK": str(node.number), "JOB_COMPLETION_INDEX": str(node.number), "KUBERNETES_SERVICE_HOST": "10.96.0.1"}
    own |= {"GLOO_SOCKET_IFNAME": node.name, "FOREBAY_FRESHNESS": "immutable", "OMP_NUM_THREADS": "1", "HOME": "/nonexistent"}
    kept = {name: value for name, value in environment.items() if name in ("PATH", "PYTHONPATH", "LANG")}
    as_user = [
        "setpriv",
        f"--reuid={USER}",
        f"--regid={USER}",
        "--clear-groups",
        "--no-new-privs",
        "--bounding-set=-all",
        "--inh-caps=-all",
    ]
    memory = f"mount -t tmpfs -o mode=2777,gid={USER},size=1g none /dev/shm && exec "
    before = opened([Path(sys.base_prefix), ROOT], node.root / "stage") + memory
    variables = ["env", "-i", *(f"{name}={value}" for name, value in {**kept, **own}.items())]
    words = before + shlex.join([*as_user, *variables, *(here(word) for word in container()["command"])])
    return node.start(["sh", "-c", words], environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/")


def test_p13_the_pods_commands_share_samples_and_files(two_nodes: list[JobNode], environment: dict[str, str]) -> None:
    shared = two_nodes[0].shared
    for path in (shared, shared.parent, *(node.root for node in two_nodes)):
        path.chmod(0o755)
    (shared / "meeting").mkdir()
    shutil.chown(shared / "meeting", 0, USER)
    (shared / "meeting").chmod(0o2777)
    secret = shared / "secret"
    secret.write_text("00112233445566778899aabbccddeeff")
    shutil.chown(secret, 0, USER)
    secret.chmod({volume["name"]: volume for volume in pod()["volumes"]}["secret"]["secret"]["defaultMode"])
    # The nodes' own directories are the manifest's, not the test bed's.
    for node in two_nodes:
        (shared / f"variables.{node.name}").write_text("")
    said = said_by([start_pod(two_nodes, node, environment) for node in two_nodes])
    for node in two_nodes:
        (node.root / "state").symlink_to(node.root / "scratch/own/state")
        assert os.stat(node.root / "scratch/own/state").st_uid == USER  # noqa: PTH116
    check(two_nodes, said, shares_files=True)
    assert not list((shared / "meeting").iterdir()), json.dumps([str(path) for path in (shared / "meeting").rglob("*")])

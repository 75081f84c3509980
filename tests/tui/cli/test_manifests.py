"""The manifests in the manual: they can be read, and have what the documented schemas require."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import msgspec

from ddptop.agent.client.start import hosts
from ddptop.tui.cli import main
from ddptop.tui.cli.verbs.launch import requested

PAGE = Path(__file__).resolve().parents[3] / "tui" / "cli" / "manual" / "many-machines.md"


def manifests(name: str) -> list[Any]:
    """Return the documents of an example."""
    found = re.search(rf"<!-- {name}: begin -->\n```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return [msgspec.yaml.decode(document) for document in found[1].split("---\n")]


def container(template: dict[str, Any]) -> dict[str, Any]:
    """Return the only container of a pod's template, which has what every container needs."""
    (found,) = template["spec"]["containers"]
    assert isinstance(found["name"], str)
    assert isinstance(found["image"], str)
    assert all(isinstance(word, str) for word in [*found["command"], *found.get("args", [])])
    return dict(found)


def test_a_pytorchjob() -> None:
    """As `kubeflow.org/v1` has it: the container is called pytorch, and torchrun's own variables say the rest."""
    (job,) = manifests("pytorchjob")
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    assert job["metadata"]["name"]
    assert set(job["spec"]) <= {"runPolicy", "elasticPolicy", "pytorchReplicaSpecs", "nprocPerNode"}
    policy = job["spec"]["elasticPolicy"]
    assert policy["rdzvBackend"] == "c10d"
    assert set(job["spec"]["pytorchReplicaSpecs"]) <= {"Master", "Worker"}
    worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    assert policy["minReplicas"] <= worker["replicas"] <= policy["maxReplicas"]
    assert worker["restartPolicy"] in ("Always", "OnFailure", "Never", "ExitCode")
    found = container(worker["template"])
    assert found["name"] == "pytorch"
    assert found["command"][0] == "torchrun"
    gpus = found["resources"]["limits"]["nvidia.com/gpu"]
    assert f"--nproc-per-node={gpus}" in found["command"]


def test_plain_pods() -> None:
    """An indexed Job whose pods know each other by the Service: name, subdomain and selector agree."""
    service, job = manifests("pods")
    assert (service["apiVersion"], service["kind"]) == ("v1", "Service")
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    assert service["spec"]["clusterIP"] == "None"
    # Else no pod has a name before all are ready, and none gets ready without the others.
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    spec = job["spec"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"]
    pod = spec["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert pod["restartPolicy"] in ("Never", "OnFailure")


def test_the_command_of_plain_pods() -> None:
    """`ddptop` reads it as the manifest means it: as many hosts as pods, numbered by index, meeting at the first."""
    service, job = manifests("pods")
    found = container(job["spec"]["template"])
    (line,) = found["args"]
    words = shlex.split(line.replace("$JOB_COMPLETION_INDEX", "1"))
    assert words[:2] == ["exec", "ddptop"]
    given, arguments = main._split(words[2:])
    options = main._parser().parse_args(given)
    options.arguments = tuple(arguments)
    request = requested(options, "somebody")
    several = hosts.read(request)
    assert several is not None
    assert several.most == job["spec"]["completions"]
    assert several.rendezvous.node_rank == 1
    assert several.here == found["resources"]["limits"]["nvidia.com/gpu"]
    host, _, subdomain = several.rendezvous.endpoint.partition(":")[0].partition(".")
    assert host == f"{job['metadata']['name']}-0"
    assert subdomain == service["metadata"]["name"]

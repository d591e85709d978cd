"""Run by an environment with SkyPilot, Kubernetes' client and Ray: each reads its file.

    python read_launchers.py FOLDERS.json

FOLDERS.json maps a launcher to its folder; the answer is JSON on stdout.
"""

import ast
import json
import sys
from pathlib import Path

import kubernetes
import ray
import sky
import yaml
from kubeflow.training import ApiClient as KubeflowClient
from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob


class Answer:
    """What Kubeflow's client expects of a server."""

    def __init__(self, data):
        self.data = data


def read_sky(folder):
    task = sky.Task.from_yaml(str(folder / "sky.yaml"))
    (resources,) = task.resources
    return {"nodes": task.num_nodes, "accelerators": resources.accelerators}


def read_kubernetes(folder):
    """Pods by the client's own models: what they do not know is lost on the way back."""
    client = kubernetes.client.ApiClient()
    job = yaml.safe_load((folder / "pytorchjob.yaml").read_text())
    count, same = 0, True
    for replica in job["spec"]["pytorchReplicaSpecs"].values():
        pod = client._ApiClient__deserialize(replica["template"], "V1PodTemplateSpec")
        same = same and client.sanitize_for_serialization(pod) == replica["template"]
        count += replica["replicas"]
    for replica in job["spec"]["pytorchReplicaSpecs"].values():
        del replica["template"]
    kubeflow = KubeflowClient()
    made = kubeflow.deserialize(Answer(json.dumps(job)), "KubeflowOrgV1PyTorchJob")
    whole = yaml.safe_load((folder / "trainjob.yaml").read_text())
    train = whole["spec"]
    needs = client._ApiClient__deserialize(
        train["trainer"]["resourcesPerNode"], "V1ResourceRequirements"
    )
    return {
        "nodes": count,
        "same": same,
        "pytorchjob": kubeflow.sanitize_for_serialization(made) == job,
        "trainjob": TrainerV1alpha1TrainJob.from_dict(whole).to_dict() == whole,
        "limits": client.sanitize_for_serialization(needs)["limits"],
        "v2_nodes": train["trainer"]["numNodes"],
    }


def read_ray(folder):
    """The driver up to its start: its tasks are Ray's remote functions."""
    source = (folder / "ray_job.py").read_text()
    ast.parse(source)
    names = {"__name__": "driver"}
    exec(compile(source, "ray_job.py", "exec"), names)
    remote = ray.remote_function.RemoteFunction
    return {
        "nodes": names["NODES"],
        "bundle": names["BUNDLE"],
        "remote": [name for name in ("address", "run") if isinstance(names[name], remote)],
    }


READERS = {"skypilot": read_sky, "kubernetes": read_kubernetes, "ray": read_ray}


def main():
    with open(sys.argv[1], encoding="utf-8") as stream:
        folders = json.load(stream)
    out, sys.stdout = sys.stdout, sys.stderr
    answers = {"versions": [sky.__version__, kubernetes.__version__, ray.__version__]}
    for name, folder in folders.items():
        answers[name] = READERS[name](Path(folder))
    json.dump(answers, out)


if __name__ == "__main__":
    main()

"""Kubernetes with Kubeflow's trainer: a PyTorchJob (v1) and a TrainJob (v2) of the same run."""

from __future__ import annotations

from typing import Any

from shardwright_frameworks.exports.launchers.job import RUN_SCRIPT, Job
from shardwright_frameworks.exports.values.exported import ExportedFile
from shardwright_frameworks.exports.values.yaml_text import yaml_text

IMAGE = "REPLACE/with-your-image:tag"
_FOLDER = "/workspace"
# torchrun's rendezvous as the trainer gives it to every pod of either kind.
_COMMAND = (
    "NNODES=${PET_NNODES:-$NNODES} NODE_RANK=${PET_NODE_RANK:-${RANK:-0}} "
    "MASTER_ADDR=${PET_MASTER_ADDR:-$MASTER_ADDR} MASTER_PORT=${PET_MASTER_PORT:-$MASTER_PORT} "
    f"exec bash {_FOLDER}/{RUN_SCRIPT}"
)


def kubernetes_files(job: Job) -> tuple[ExportedFile, ...]:
    """`pytorchjob.yaml` and `trainjob.yaml`; the folder is mounted from the config map `NAME-files`
    (kubectl create configmap NAME-files --from-file=.)."""
    return (
        ExportedFile(path="pytorchjob.yaml", text=yaml_text(_pytorch_job(job))),
        ExportedFile(path="trainjob.yaml", text=yaml_text(_train_job(job))),
    )


def _resources(job: Job) -> dict[str, Any]:
    gpu = "amd.com/gpu" if job.device.startswith("mi") else "nvidia.com/gpu"
    device = {"gpu": gpu, "tpu": "google.com/tpu"}.get(job.device_type, "cpu")
    return {"limits": {device: str(job.devices_per_node)}}


def _pod(job: Job) -> dict[str, Any]:
    return {
        "containers": [
            {
                "name": "pytorch",
                "image": IMAGE,
                "command": ["bash", "-c", _COMMAND],
                "env": [{"name": "NNODES", "value": str(job.num_nodes)}],
                "resources": _resources(job),
                "volumeMounts": [
                    {"name": "files", "mountPath": _FOLDER},
                    {"name": "shm", "mountPath": "/dev/shm"},
                ],
            }
        ],
        "volumes": [
            {"name": "files", "configMap": {"name": f"{job.name}-files"}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ],
    }


def _pytorch_job(job: Job) -> dict[str, Any]:
    """kubeflow.org/v1 PyTorchJob: one master, the rest workers."""
    replicas: dict[str, Any] = {
        "Master": {"replicas": 1, "restartPolicy": "OnFailure", "template": {"spec": _pod(job)}}
    }
    if job.num_nodes > 1:
        replicas["Worker"] = {
            "replicas": job.num_nodes - 1,
            "restartPolicy": "OnFailure",
            "template": {"spec": _pod(job)},
        }
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": job.name},
        "spec": {
            "nprocPerNode": str(job.devices_per_node),
            "runPolicy": {"cleanPodPolicy": "None"},
            "pytorchReplicaSpecs": replicas,
        },
    }


def _train_job(job: Job) -> dict[str, Any]:
    """trainer.kubeflow.org/v1alpha1 TrainJob on the runtime `torch-distributed`, whose pods get the
    files by a patch of the runtime (Kubeflow Trainer 2.3, runtimePatches)."""
    pod = _pod(job)
    mounts = {"name": "node", "volumeMounts": pod["containers"][0]["volumeMounts"]}
    patch: dict[str, Any] = {"volumes": pod["volumes"], "containers": [mounts]}
    for _ in range(2):  # of the job's and the pod's template
        patch = {"template": {"spec": patch}}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": job.name},
        "spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": {
                "image": IMAGE,
                "command": ["bash", "-c", _COMMAND],
                "numNodes": job.num_nodes,
                "numProcPerNode": job.devices_per_node,
                "resourcesPerNode": _resources(job),
            },
            "runtimePatches": [
                {
                    "manager": "shardwright",
                    "trainingRuntimeSpec": {
                        "template": {"spec": {"replicatedJobs": [{"name": "node", **patch}]}}
                    },
                }
            ],
        },
    }

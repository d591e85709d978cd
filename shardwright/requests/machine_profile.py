"""`profile_machine`: measure this machine, and a model's blocks on it, into a profile file.

Measurements are saved one by one: after an interruption, by Ctrl-C or a scheduler's limit, the same
command continues.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from profiles.document import content_hash, read_document, read_mapping, write_document
from profiles.errors import MismatchError
from profiles.extras import need_package
from profiles.hardware.catalogue.catalog import CLUSTER_SCHEMA
from profiles.hardware.catalogue.cluster import Cluster
from profiles.model.loaders import resolve_model
from shardwright.requests.named_model import import_from_here, sample_of
from shardwright.requests.provenance import provenance
from simulator.values.workload import Workload

Progress = Callable[..., None]

# A pipeline of this model measures the runtime's overhead around an action, as its blocks are
# small.
_RUNTIME_MODEL, _RUNTIME_TOKENS = "tiny-llama-demo", 32


def profile_machine(
    path: Path,
    *,
    quick: bool = False,
    devices: int | None = None,
    threads: int | None = None,
    model: str | None = None,
    seq: int | None = None,
    micro_batches: tuple[int, ...] = (1,),
    precision: str = "fp32",
    progress: Callable[[str], AbstractContextManager[Progress]] | None = None,
) -> Cluster:
    """Measure, and return the profile in the file.

    quick     about a minute for the machine, with fewer points
    model     measure its blocks too; the machine itself only if the file does not contain it
    progress  for a title, gives a reporter of (done, total, label)
    """
    # The model that measures the executor is an HF configuration.
    need_package("torch", "measuring this machine", extra="hf")
    from profiles.hardware.probe.probe import measure_machine, most_devices

    show = progress or (lambda title: nullcontext(lambda *_: None))
    kept = path.with_name(f".{path.name}.partial")
    per_device = threads or 1
    count = devices or most_devices(per_device)
    today = datetime.date.today().isoformat()
    if model is None or not path.is_file() or quick:
        with show("measuring this machine") as report:
            cluster = measure_machine(
                count, per_device, date=today, quick=quick, progress=report, kept=kept
            )
        if not quick:
            with show("measuring the executor's own time") as report:
                cluster = _with_overheads(cluster, report)
        write_document(path, cluster, schema=CLUSTER_SCHEMA, provenance=provenance(cluster))
        kept.unlink(missing_ok=True)
    cluster = read_document(path, Cluster, schema=CLUSTER_SCHEMA)
    if model is None:
        return cluster
    _check_same(path, cluster, devices, threads)
    from executor.probe_pipeline import BlockProbe
    from shardwright.requests.plan_route import trace_blocks
    from shardwright.requests.python_plan import target_of

    import_from_here(model)
    length = sample_of(model, seq).sequence_length
    work = Workload(global_batch=1, sequence_length=length, precision=precision)
    spec = resolve_model(model)
    traced = trace_blocks(model, work, target=target_of(cluster))
    question = content_hash([spec.content_hash, length, precision, sorted(micro_batches), today])
    done = _measured_before(path, question)
    with show("measuring blocks") as report:
        # One size after the other, each kept: an interrupted profile goes on with the next.
        for micro_batch in micro_batches:
            if micro_batch in done:
                continue
            probe = BlockProbe(spec, traced, cluster, _threads(cluster), report)
            cluster = probe.profiled(micro_batch)
            done = (*done, micro_batch)
            left = {"question": question, "done": list(done)}
            unfinished = {"unfinished": left} if len(done) < len(micro_batches) else {}
            origin = provenance(cluster) | unfinished
            write_document(path, cluster, schema=CLUSTER_SCHEMA, provenance=origin)
    return cluster


def _with_overheads(cluster: Cluster, progress: Progress) -> Cluster:
    """The profile with the executor's overheads outside of blocks, from a small model."""
    from executor.probe_pipeline import BlockProbe
    from shardwright.requests.plan_route import trace_blocks

    if any(group.device.type != "cpu" for group in cluster.groups) or cluster.num_devices == 1:
        return cluster
    work = Workload(global_batch=1, sequence_length=_RUNTIME_TOKENS, precision="fp32")
    traced = trace_blocks(_RUNTIME_MODEL, work, target="cpu")
    spec = resolve_model(_RUNTIME_MODEL)
    return BlockProbe(spec, traced, cluster, _threads(cluster), progress).with_overheads()


def _measured_before(path: Path, question: str) -> tuple[int, ...]:
    """The micro-batch sizes measured by an interrupted profile of the same request."""
    before = read_mapping(path).get("provenance") or {}
    left = before.get("unfinished") or {}
    return tuple(left.get("done", ())) if left.get("question") == question else ()


def _threads(cluster: Cluster) -> int:
    return int(cluster.machine.get("threads_per_device", "1"))


def _check_same(path: Path, cluster: Cluster, devices: int | None, threads: int | None) -> None:
    """Raises InputError if blocks would be measured with other devices than the profile's."""
    held = (cluster.num_devices, _threads(cluster))
    asked = (devices or held[0], threads or held[1])
    if asked != held:
        raise MismatchError(
            f"{path} describes {held[0]} devices of {held[1]} threads, --devices and --threads are "
            f"{asked[0]} of {asked[1]}; leave them out, or measure the machine anew first: "
            f"shardwright profile --devices {asked[0]} --threads {asked[1]} -o {path}"
        )

"""A user's script with every public function of `shardwright`; mypy reads it, nothing runs it."""

from __future__ import annotations

import shardwright
from shardwright import InputError, LayoutFile, Plan, PlanFile, Prediction, ShardwrightError


def plans(work: shardwright.Workload) -> Prediction:
    cluster = shardwright.cluster("4x8xh100-sxm")
    own = shardwright.plan(
        "llama-3.1-8b",
        cluster,
        work,
        tp=(1, 2),
        pp=4,
        micro_batch=1,
        zero=1,
        recompute="selective",
        schedule=("1f1b", "gpipe"),
        time_limit_s=30.0,
        solver="dp",
        seed=1,
        price="spot",
    )
    layout = shardwright.plan(
        "llama-3.1-8b", "4x8xh100-sxm", work, stack="megatron-core", tp=2, cp=1, ep=1, vpp=1
    )
    file: PlanFile = own
    layout_file: LayoutFile = layout
    seconds: float | None = own.step_time_s
    plan: Plan | None = own.plan
    again = shardwright.load_plan("plan.json")
    step = shardwright.predict("plan.json")
    differences = shardwright.diff(file, layout_file)
    page = shardwright.report(own, "report.html", run="run.json")
    print(seconds, plan, again.table(), step.step_time_s.value, differences.table(), page.name)
    assert plan is not None
    return shardwright.predict(plan, shardwright.trace("llama-3.1-8b", tp_degrees=(1, 2)))


def runs() -> None:
    machine = shardwright.profile(
        "tiny-llama-demo", quick=True, sequence_length=128, micro_batches=(1, 2), precision="fp32"
    )
    measured = shardwright.run("plan.json", steps=5, check=True, output="run.json", device="cpu")
    measured = shardwright.load_run("run.json")
    compared = shardwright.compare("plan.json", measured)
    logged = shardwright.compare("plan.json", log=["train.log"], on="8xh100-sxm")
    print(machine.num_devices, measured.step_wall_s, compared.table(), logged.to_pandas())


def sizes() -> None:
    found = shardwright.size(
        "llama-3.1-70b", "h100-sxm,b200", tokens="15T", deadline="60d", sure="90%", stack="any"
    )
    fitting = shardwright.fit("llama-3.1-8b", sequence_length=4096, micro_batch=2, precision="bf16")
    print(found.best, fitting.table(), *shardwright.frameworks())


def of_plugins() -> None:
    imported = shardwright.import_config("run/train.sh")
    written = shardwright.export("plan.json", "megatron", output="run", launcher="torchrun")
    same: bool = shardwright.check("plan.json", "run").agrees
    changes = shardwright.changes(imported, on="8xh100-sxm", precisions=("fp8",))
    log = shardwright.read_log("train.log")
    compared = shardwright.compare_log(imported, ["train.log"], on="8xh100-sxm")
    for found in shardwright.watch("train.log", "plan.json", interval_s=1.0):
        print(found.table())
    sharding = shardwright.shard(
        "llama-3.1-8b", "8xh100-sxm", (2, 4), sequence_length=4096, block="LlamaDecoderLayer"
    )
    print(written, same, changes.table(), log.table(), compared.table(), sharding)
    print(shardwright.load_sharding("sharding.json"), shardwright.run_sharding("s.json", steps=1))


if __name__ == "__main__":
    try:
        plans(shardwright.Workload(global_batch=64, sequence_length=8192))
        runs()
        sizes()
        of_plugins()
    except (InputError, ShardwrightError) as error:
        raise SystemExit(f"{error} ({shardwright.__version__})") from error

"""`row_of_import`: an imported run as a row of a table of runs, which predictions are made from."""

from __future__ import annotations

from interop.configs.imported_run import MODEL_FIGURES, ImportedRun
from profiles.published.run import PublishedRun

# The words of a table's `framework` (simulator/training_run/framework) for those of an import.
_STACKS = {
    "megatron-lm": "Megatron-Core",
    "megatron-deepspeed": "Megatron-DeepSpeed",
    "megatron-bridge": "Megatron-Bridge",
    "nemo": "Megatron-Core (NeMo)",
    "primus": "Megatron-Core (Primus)",
    "gpt-neox": "Megatron-DeepSpeed (GPT-NeoX)",
    "torchtitan": "torchtitan",
    "nanotron": "nanotron",
    "maxtext": "MaxText",
    "llm-foundry": "composer/llm-foundry FSDP",
    "olmo": "PyTorch FSDP (OLMo)",
    "internevo": "InternEvo",
}
_NOT_COLUMNS = ("max_positions", "mtp_layers", "lora_rank")


def row_of_import(
    run: ImportedRun,
    *,
    id: str = "imported",
    device: str = "",
    devices: int | None = None,
) -> PublishedRun:
    """The run as a row; silences are answered by the framework's defaults that the import names,
    then as those of every row are (simulator/training_run/reading).

    device, devices  what the files cannot say: where the run is to be
    """
    figures = {name: getattr(run.model, name) for name in MODEL_FIGURES if name not in _NOT_COLUMNS}
    count = devices or run.devices
    axes = {name: _whole(run.answer(name)) for name in ("tp", "pp", "vpp", "cp", "ep")}
    dp = run.dp
    if devices is not None and devices != run.devices:
        dp = None
    if run.model.num_experts is None:
        axes["ep"] = None
    stack = _STACKS.get(run.framework or "")
    if stack is None:
        sharded = run.zero_stage is not None and run.framework in ("accelerate", "transformers")
        stack = "PyTorch FSDP" if sharded else run.framework or ""
        if run.framework == "deepspeed" or any("deepspeed" in name for name in run.files):
            stack = "DeepSpeed (HF transformers)"
    precision = run.precision or run.answer("precision")
    recompute = run.answer("recompute")
    return PublishedRun(
        row=1,
        id=id,
        source=", ".join(run.files[:4]),
        model=_model_name(run),
        family="lora" if run.model.lora_rank else "moe" if run.model.num_experts else "",
        device=device or run.device or "",
        num_devices=count,
        devices_per_node=run.devices_per_node,
        dp=dp,
        tp=axes["tp"],
        pp=axes["pp"],
        vpp=axes["vpp"],
        cp=axes["cp"],
        ep=axes["ep"],
        sequence_parallel=_truth(run.answer("sequence_parallel")),
        zero_stage=_whole(run.answer("zero_stage")) if run.zero_stage is None else run.zero_stage,
        recompute=str(recompute) if recompute else "",
        recompute_layers=run.recompute_layers,
        micro_batch=_whole(run.answer("micro_batch")),
        global_batch=_whole(run.answer("global_batch")),
        seq_len=run.seq_len,
        precision=str(precision) if precision else "",
        schedule=str(run.answer("schedule") or "") if (run.answer("pp") or 1) != 1 else "",
        framework=stack,
        optimizer_offload=run.optimizer_offload,
        mtp_layers=run.model.mtp_layers,
        lora_rank=run.model.lora_rank,
        **figures,
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _truth(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _model_name(run: ImportedRun) -> str:
    name = (run.model.name or "").rstrip("/").rsplit("/", 1)[-1]
    return f"{name} {run.model.flavor}" if name and run.model.flavor else name

"""OLMo-core's configurations in Python as a run (github.com/allenai/OLMo-core,
src/olmo_core/train/train_module, nn/transformer/config.py), with overrides of the command line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.interpolation import Open
from shardwright_frameworks.configs.keyed_values import Reader, degree_of, dtype_of
from shardwright_frameworks.configs.python_evaluation import Made
from shardwright_frameworks.configs.python_values import Built, Named, is_literal
from shardwright_frameworks.frameworks.nemo import Values
from shardwright_frameworks.shell.text_marks import Place

_MODES = {"full": "full", "selected_blocks": None, "selected_modules": None, "selected_ops": None}
# Fields by a class and its keyword; `*` for any class.
_ENTRIES: Mapping[tuple[str, str], tuple[str, Reader]] = {
    ("*", "max_sequence_length"): ("seq_len", degree_of),
    ("NumpyDatasetConfig", "sequence_length"): ("seq_len", degree_of),
    ("*", "rank_microbatch_size"): ("micro_batch", degree_of),
    ("*", "global_batch_size"): ("global_batch", degree_of),
    ("TransformerDataParallelConfig", "name"): (
        "zero_stage",
        {"fsdp": 3, "hsdp": 3, "ddp": 0}.get,
    ),
    ("TransformerDataParallelConfig", "param_dtype"): ("precision", dtype_of),
    ("TransformerTensorParallelConfig", "degree"): ("tp", degree_of),
    ("TransformerContextParallelConfig", "degree"): ("cp", degree_of),
    ("TransformerPipelineParallelConfig", "degree"): ("pp", degree_of),
    ("TransformerExpertParallelConfig", "degree"): ("ep", degree_of),
    ("TransformerActivationCheckpointingConfig", "mode"): ("recompute", _MODES.get),
    ("TransformerConfig", "d_model"): ("model.hidden_size", degree_of),
    ("TransformerConfig", "n_layers"): ("model.num_layers", degree_of),
    **{
        (kind, key): (f"model.{about}", degree_of)
        for kind in ("TransformerConfig", "AttentionConfig")
        for key, about in (("n_heads", "num_heads"), ("n_kv_heads", "num_kv_heads"))
    },
    ("FeedForwardConfig", "hidden_size"): ("model.ffn_size", degree_of),
    ("TransformerConfig", "vocab_size"): ("model.vocab_size", degree_of),
}
_OPTIMIZER = re.compile(r"(?:SkipStep)?(AdamW|Adam|Lion|Muon|Dion)Config$")
_TOKENS = ("micro_batch", "global_batch")
_NOT_DATA = ("eval_dataset", "lm_evaluator")
Call = Callable[[str, dict[str, Any]], Any]
"""Evaluates a function of the file with arguments."""


def makes_training(made: Sequence[Made]) -> bool:
    """Whether a program makes OLMo-core's configuration of the training."""
    return any("TrainModuleConfig" in each.built.call for each in made)


def collect_olmo_core(made: Sequence[Made], overrides: Values, collected: Collected) -> str:
    """Collect the objects of a configuration; batches are counted in tokens."""
    for each, unsure, _ in made:
        parts = each.call.split(".")
        kind = next((part for part in reversed(parts) if part[:1].isupper()), "")
        if kind == "TransformerConfig" and parts[-1] != kind:
            collected.set_first("model.name", parts[-1], each.place, each.call)
        elif (found := _OPTIMIZER.search(kind)) is not None:
            collected.set_first("optimizer", found[1].lower(), each.place, kind)
        elif kind == "Float8Config" and each.entries.get("enabled", (True,))[0] is True:
            collected.leave_open("precision", kind, "fp8 of some layers", each.place)
        entries = dict(each.entries)
        if kind == "TransformerActivationCheckpointingConfig" and each.arguments:
            entries.setdefault("mode", (each.arguments[0], each.place))
        for key, (value, place) in entries.items():
            _collect(kind, str(key), Open(unsure) if unsure else value, place, collected)
    with collected.overriding_files():
        for path, (value, place) in overrides.items():
            kind = "TransformerDataParallelConfig" if "dp_config" in path else "NumpyDatasetConfig"
            if not any(part in _NOT_DATA for part in path):
                _collect(kind, path[-1], value, place, collected, ".".join(path))
    length = collected.count("seq_len")
    for key in _TOKENS:
        placed = collected.placed.pop(key, None)
        tokens = placed.value if placed is not None else None
        if placed is None or not length or not isinstance(tokens, int) or tokens % length:
            collected.open_keys.add(key)
        else:
            collected.set(key, tokens // length, placed.place, f"{placed.option} tokens")
    collected.default("OLMo-core 2.x, train_module/config.py", tp=1, pp=1, cp=1, recompute="none")
    return "olmo-core"


def _collect(
    kind: str, key: str, value: Any, place: Place, collected: Collected, option: str = ""
) -> None:
    found = _ENTRIES.get((kind, key)) or _ENTRIES.get(("*", key))
    if found is None or value is None:
        return
    plain = value.name.rpartition(".")[2] if isinstance(value, Named) else value
    read = found[1](plain) if is_literal(plain) else None
    if read is not None:
        collected.set(found[0], read, place, option or f"{kind}({key})")
    elif found[0] not in collected.placed or isinstance(value, Open):
        why = value.why if isinstance(value, Open) else f"{key} {plain} has no equal here"
        unknown = isinstance(value, Built) or not is_literal(plain)
        why = "its value is computed by the program" if unknown else why
        collected.leave_open(found[0], option or f"{kind}({key})", why, place)

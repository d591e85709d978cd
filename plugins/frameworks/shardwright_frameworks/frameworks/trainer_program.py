"""Python programs that set up transformers' or TRL's Trainer themselves: the objects that they
make, with literal values, variables and the arguments of the program."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.interpolation import Open
from shardwright_frameworks.configs.python_values import Built, is_literal
from shardwright_frameworks.frameworks import hf_trainer
from shardwright_frameworks.frameworks.objectives import report_objective

_CONFIG = re.compile(r"(?:TrainingArguments|(SFT|DPO|GRPO|KTO|ORPO|CPO|RLOO|PPO|Reward)Config)$")
_MODEL = re.compile(r"(LM|Model\w*|Classification)\.from_pretrained$")
_ADAPTERS = re.compile(r"(LoraConfig|\.get_peft_model)$")
_MODEL_KEYS = ("torch_dtype", "dtype", "load_in_4bit", "load_in_8bit", "attn_implementation",
               "max_seq_length")  # fmt: skip


def collect_program(made: Sequence[Built], collected: Collected) -> str | Built | None:
    """Collect the objects that a program makes; returns the DeepSpeed file that it names or its
    entries, "" for none, None if it makes no Trainer's arguments."""
    configs = [each for each in made if _CONFIG.search(each.call)]
    if not configs:
        return None
    first, *others = configs
    keys = {key for each in others for key in (*each.entries, *first.entries)}
    if differing := sorted(str(key) for key in keys if not _agree(str(key), configs)):
        why = f"the program has several; the first is read, others differ in {differing[0]}"
        collected.report_unresolved(first.call, why, first.place)
    given = _given(first, tuple(map(str, first.entries)))
    if first.open:  # `TrainingArguments(**options)`
        collected.report_missing(first.call, first.open, first.place)
    for each in made:
        if _MODEL.search(each.call):
            given += _given(each, _MODEL_KEYS) + _model_name(each)
        elif each.call.endswith("BitsAndBytesConfig"):
            given += _given(each, ("load_in_4bit", "load_in_8bit"))
        elif each.call.endswith("Trainer"):
            given += _given(each, ("max_seq_length",))
        elif _ADAPTERS.search(each.call):
            given += [("lora_r", *rest) for _, *rest in _given(each, ("r",))]
    named = hf_trainer.collect_trainer(given, collected)
    if "deepspeed" in first.entries:
        collected.defaults.pop("zero_stage", None)
    objective = _CONFIG.search(first.call)
    if objective is not None and objective[1] is not None:
        report_objective(objective[1].lower(), first.call, first.place, collected)
        collected.open_keys |= {"precision", "recompute"} - collected.placed.keys()  # TRL's differ
    inside = first.entries.get("deepspeed", (None,))[0]
    if isinstance(inside, Built) and not inside.call:
        return inside
    return named or ""


def _agree(key: str, configs: Sequence[Built]) -> bool:
    values = [each.entries.get(key, (None, None))[0] for each in configs]
    return all(is_literal(value) and value == values[0] for value in values)


def _given(made: Built, keys: Sequence[str]) -> hf_trainer.Given:
    """The entries of an object; all but constants are unknown."""
    given, name = hf_trainer.Given(), made.call.rpartition(".")[2]
    for key, (value, place) in made.entries.items():
        if key in keys and value is not None and not (isinstance(value, Built) and not value.call):
            known = is_literal(value) or isinstance(value, Open)
            read = value if known else Open("its value is computed by the program")
            given.append((key, read, place, f"{name}({key})"))
    return given


def _model_name(made: Built) -> hf_trainer.Given:
    names = ("model_name", "pretrained_model_name_or_path")
    written: list[Any] = [made.entries[name][0] for name in names if name in made.entries]
    known = [each for each in [*written, *made.arguments][:1] if isinstance(each, (str, Open))]
    return [("model_name_or_path", each, made.place, "from_pretrained") for each in known]

"""Python programs with transformers' or TRL's Trainer: the arguments that they set up or have
defaults for, and their model and adapters, with literal values, variables and the arguments of the
program."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.interpolation import Open
from shardwright_frameworks.configs.python_arguments import is_parser, parser_result
from shardwright_frameworks.configs.python_evaluation import Made
from shardwright_frameworks.configs.python_values import Built, Named, is_literal
from shardwright_frameworks.frameworks import hf_trainer
from shardwright_frameworks.frameworks.objectives import report_objective
from shardwright_frameworks.shell.text_marks import Place

_CONFIG = re.compile(r"(?:TrainingArguments|(SFT|DPO|GRPO|KTO|ORPO|CPO|RLOO|PPO|Reward)Config)$")
OF_TRL = re.compile(r"\b(SFT|DPO|GRPO|KTO|ORPO|CPO|RLOO|PPO|Reward)Config\b")
"""Pattern of TRL's classes of arguments."""
_OF = re.compile(r"(transformers|trl|unsloth)?(\.|$)")  # not a program's own classes
_MODEL = re.compile(r"(LM|Model\w*|Classification)\.from_pretrained$")
_ADAPTERS = re.compile(r"(LoraConfig|\.get_peft_model)$")
_RECOMPUTES = (
    "gradient_checkpointing_enable",
    "prepare_model_for_kbit_training",
    "prepare_model_for_int8_training",
    "Model.get_peft_model",  # Unsloth's
)
_MODEL_KEYS = (
    "torch_dtype",
    "dtype",
    "load_in_4bit",
    "load_in_8bit",
    "attn_implementation",
    "max_seq_length",
)
Defaults = Callable[[str], Mapping[str, tuple[Any, Place]]]
"""The entries in the definition of a class."""


def collect_program(made: Sequence[Made], collected: Collected) -> str | Built | None:
    """Collect the Trainer that a program sets up; returns the DeepSpeed file that it names or its
    entries, "" for none, None if it makes no Trainer's arguments."""
    configs = [
        each.built for each in made if _CONFIG.search(each.built.call) and _OF.match(each.module)
    ]
    if not configs:
        return None
    first, *others = configs
    keys = {key for each in others for key in (*each.entries, *first.entries)}
    if differing := sorted(str(key) for key in keys if not _agree(str(key), configs)):
        why = f"the program has several; the first is read, others differ in {differing[0]}"
        collected.report_unresolved(first.call, why, first.place)
    if first.open:  # `TrainingArguments(**options)`
        collected.report_missing(first.call, first.open, first.place)
    named = hf_trainer.collect_trainer(_given(first, tuple(map(str, first.entries))), collected)
    if first.entries.get("deepspeed", (None,))[0] is not None:
        collected.defaults.pop("zero_stage", None)
    collect_objects(made, collected)
    objective = _CONFIG.search(first.call)
    if objective is not None and objective[1] is not None:
        report_objective(objective[1].lower(), first.call, first.place, collected)
        collected.open_keys |= {"precision", "recompute"} - collected.placed.keys()  # TRL's differ
    inside = first.entries.get("deepspeed", (None,))[0]
    if isinstance(inside, Built) and not inside.call:
        return inside
    return named or ""


def given_by_parser(made: Sequence[Made], defaults: Defaults) -> tuple[hf_trainer.Given, bool]:
    """The defaults of a program's own options, and whether its parser is `argparse`, not that of
    the Trainer's arguments."""
    given, own = hf_trainer.Given(), False
    for each in (one.built for one in made):
        if is_parser(each):
            given, own = _options_of(each), True
            break
        if each.call.endswith(("HfArgumentParser", "TrlParser")) and each.arguments:
            kinds = each.arguments[0] if isinstance(each.arguments[0], list) else each.arguments
            for kind in kinds:
                fields = defaults(kind.name) if isinstance(kind, Named) else {}
                given += _given(Built(call="", entries=dict(fields)), tuple(fields))
    # Another option often switches adapters on; a rank by default does not.
    return [each for each in given if hf_trainer.field_of(each[0]) != "model.lora_rank"], own


def _options_of(parser: Built) -> hf_trainer.Given:
    """The given options of a parser, and the defaults of others."""
    parsed = parser_result(parser, "parse_args", [], Built(), parser.place)
    return _given(Built(entries=parsed.entries), tuple(parsed.entries))


def collect_objects(made: Sequence[Made], collected: Collected) -> None:
    """Collect a program's model and adapters, as far as its options do not decide of them."""
    given = hf_trainer.Given()
    if any(each.call.endswith(("SFTTrainer", "SFTConfig")) for each, *_ in made):
        collected.default("TRL 0.9 to 0.2x, SFTConfig", seq_len=1024)
    adapts = any(
        each.call.endswith("get_peft_model") or "peft_config" in each.entries for each, *_ in made
    )
    for each, unsure, _ in made:
        found = hf_trainer.Given()
        if _MODEL.search(each.call):
            found += _given(each, _MODEL_KEYS) + _model_name(each)
        elif each.call.endswith("BitsAndBytesConfig"):
            found += _given(each, ("load_in_4bit", "load_in_8bit"))
        elif is_parser(each):  # the Trainer's arguments have no length
            found += [o for o in _options_of(each) if hf_trainer.field_of(o[0]) == "seq_len"]
        elif each.call.endswith("Trainer"):
            found += _given(each, ("max_seq_length",))
        elif each.call.endswith("Accelerator"):
            found += _given(each, ("gradient_accumulation_steps",))
            for _, value, at, option in _given(each, ("mixed_precision",)):
                found.append(("torch_dtype", value, at, option))
        elif _ADAPTERS.search(each.call):
            found += [
                ("lora_r", value, at, option) for _, value, at, option in _given(each, ("r",))
            ]
            unsure = unsure or ("" if adapts else "the use of these adapters is not found")
        if each.call.endswith(_RECOMPUTES):
            off = each.entries.get("use_gradient_checkpointing", (True,))[0] is False
            found += [("gradient_checkpointing", True, each.place, each.call)] * (not off)
        given += [(key, Open(unsure) if unsure else v, at, o) for key, v, at, o in found]
    decided = collected.placed.keys() | collected.open_keys
    given = [each for each in given if hf_trainer.field_of(each[0]) not in decided]
    hf_trainer.collect_trainer(given, collected, defaults=False)


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
            given.append((key, read, place, f"{name}({key})" if name else key))
    return given


def _model_name(made: Built) -> hf_trainer.Given:
    names = ("model_name", "pretrained_model_name_or_path")
    written: list[Any] = [made.entries[name][0] for name in names if name in made.entries]
    known = [each for each in [*written, *made.arguments][:1] if isinstance(each, (str, Open))]
    return [("model_name_or_path", each, made.place, "from_pretrained") for each in known]

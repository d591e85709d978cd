"""ms-swift as a run (github.com/modelscope/ms-swift, 3.x and 4.x): `swift sft` on the Trainer,
`megatron sft` with Megatron's names, and the YAML of its Ray jobs with the sections `train` and
`rollout`."""

from __future__ import annotations

from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.command_options import Option, Options, option_key
from shardwright_frameworks.configs.keyed_file import KeyedFile
from shardwright_frameworks.configs.keyed_values import degree_of, dtype_of
from shardwright_frameworks.configs.known_options import is_known
from shardwright_frameworks.frameworks import hf_trainer, megatron
from shardwright_frameworks.frameworks.objectives import report_objective
from shardwright_frameworks.shell.text_marks import Place, Word

_LORA_RANK = 8  # swift.readthedocs.io, Command-line parameters
_TUNED = ("train_type", "tuner_type", "sft_type")  # of 3.x, 4.x and 2.x
# Only its files have these next to `model`.
_MARKS = frozenset({*_TUNED, "rlhf_type", "split_dataset_ratio", "model_author"})


def is_ray_job(file: KeyedFile) -> bool:
    """Whether a file is a Ray job of ms-swift."""
    return file.has("train", "gpus") and file.has("model") and not file.sections("model")


def is_ms_swift(file: KeyedFile) -> bool:
    """Whether a file has the arguments of `swift sft` or `megatron sft`, or is a Ray job."""
    named = isinstance(file.values.get(("model",)), str)
    return is_ray_job(file) or (named and bool(file.sections() & _MARKS))


def collect_file(file: KeyedFile, collected: Collected) -> str | None:
    """Collects a file of arguments, or the trainer of a Ray job; returns the DeepSpeed file that
    it names."""
    options, gpus = Options(options_of_file(file), ()), ("train", "gpus")
    if is_ray_job(file):
        collected.set("devices", degree_of(file.get(*gpus)), file.place(gpus), "train.gpus")
    else:
        collected.open_keys.add("devices_per_node")  # a variable of the command
    if is_ray_job(file) or {"micro_batch_size", "global_batch_size"} & file.sections():
        collect_megatron(options, collected)
        return None
    return collect_swift(options, collected, Place(file.name, 1))


def options_of_file(file: KeyedFile) -> tuple[Option, ...]:
    """The keys of a file as options of the command."""
    given = []
    for path, value in file.values.items():
        is_option = len(path) == 1 or (path[0] == "train" and path != ("train", "gpus"))
        is_option |= path[0] == "fsdp_config"
        if is_option and not isinstance(value, list):
            place = file.place(path)
            given.append(Option(f"--{path[-1]}", (Word(str(value), place),), place))
    return tuple(given)


def collect_megatron(options: Options, collected: Collected) -> None:
    """Collects the options of `megatron sft`."""
    # torch_dtype is that of the checkpoint, bf16 in models of these years.
    collected.default(
        "ms-swift 3.x and 4.x, swift/megatron/arguments/megatron_args.py",
        distributed_optimizer=True, zero_stage=1, precision="bf16", micro_batch=1, global_batch=16,
        recompute="selective"
    )  # fmt: skip
    # --model_name is how the trained assistant calls itself.
    named = tuple(option for option in options.given if option.key != "model_name")
    options = Options(named, options.unknowns)
    megatron.collect_megatron(options, collected)
    # ms-swift has options in addition to Megatron's.
    collected.unknown = [
        each for each in collected.unknown if not is_known("ms-swift", option_key(each.option))
    ]
    options.collect_counts(collected, {"max_length": "seq_len", "lora_rank": "model.lora_rank"})
    if options.last(*_TUNED) is not None:  # `full` without it
        _collect_tuner(options, collected, options.given[0].place)
    _add_answers(options, collected)
    options.collect_words(collected, {"model": ("model.name", str)})
    converted = (options.text("load") or "").rstrip("/").rpartition("/")[2]
    if converted.endswith("-mcore"):  # written by `swift export`, in its manual
        place = next(iter(options.of("load"))).place
        collected.set_first("model.name", converted.removesuffix("-mcore"), place, "--load")


def collect_swift(options: Options, collected: Collected, place: Place) -> str | None:
    """Collects the options of `swift sft`; returns the DeepSpeed file that they name."""
    given = hf_trainer.given_by_options(options, collected)
    deepspeed = hf_trainer.collect_trainer(given, collected, defaults=False)
    counts = {"sequence_parallel_size": "cp", "batch_size": "micro_batch"}  # the latter of 1.x
    options.collect_counts(collected, counts)
    collected.default(
        "ms-swift 3.x on transformers' Trainer, one rank a copy", tp=1, pp=1, cp=1,
        recompute="full", devices_per_node=1, micro_batch=1, optimizer="adamw_torch",
    )  # fmt: skip
    for option in options.of("fsdp"):
        if options.text("fsdp") == "fsdp2":  # its file of that name
            collected.set("zero_stage", 3, option.place, option.name)
    if not deepspeed and "fsdp" not in options:
        collected.default("ms-swift 3.x on transformers' Trainer, every rank whole", zero_stage=0)
    _fill_batch(options, collected)
    if "precision" not in collected.placed:  # of mixed precision
        options.collect_words(
            collected, dict.fromkeys(("torch_dtype", "dtype"), ("precision", dtype_of))
        )
    _add_answers(options, collected)
    _collect_tuner(options, collected, place)
    return deepspeed


def _fill_batch(options: Options, collected: Collected) -> None:
    """Fill in the default number of passes, for a batch of 16 (swift/trainers/arguments.py)."""
    if "gradient_accumulation_steps" in options or _kind(options) == "grpo":
        return
    counts = [collected.count_or_default(key) for key in ("nodes", "devices_per_node")]
    micro = collected.count_or_default("micro_batch")
    if micro and counts[0] and counts[1]:
        ranks = counts[0] * counts[1]
        how = f"16 sequences / (micro-batch {micro} x {ranks} ranks), ms-swift's default"
        collected.derive("gradient_accumulation", max(1, -(-16 // (micro * ranks))), how)
    else:
        collected.open_keys.add("gradient_accumulation")


def _kind(options: Options) -> str | None:
    """The algorithm of `swift rlhf`; a file of its arguments may have only its numbers."""
    return options.text("rlhf_type") or ("grpo" if "num_generations" in options else None)


def _add_answers(options: Options, collected: Collected) -> None:
    """Add the generated tokens to `max_length`, which is the length of prompts if a model learns
    from its own answers (docs, Command-line-parameters, max_completion_length)."""
    kind = _kind(options)
    named = options.last("rlhf_type") or options.last("num_generations")
    if named is not None:
        report_objective(kind, named.name, named.place, collected)
    for option in options.of("task_type"):
        word = options.text("task_type")
        report_objective(
            None if word == "causal_lm" else word, option.name, option.place, collected
        )
    prompts = collected.count("seq_len")
    place = collected.place("seq_len")
    if options.text("lmbda") in ("0", "0.0"):
        return  # of GKD: only the answers of the data
    if kind not in ("grpo", "ppo", "gkd") or not prompts or place is None:
        return
    answers = options.last("max_completion_length")
    number = 512 if answers is None else degree_of(options.value_of(answers, collected))
    if number is None:
        collected.leave_open("seq_len")
        return
    del collected.placed["seq_len"]
    collected.set("seq_len", prompts + number, place, "max_length max_completion_length")
    if answers is not None:
        collected.use(answers.name, answers.place)


def _collect_tuner(options: Options, collected: Collected, place: Place) -> None:
    """Collect the trained parameters: all with `full`, otherwise an adapter (lora by default:
    swift.readthedocs.io, Command-line parameters)."""
    named = options.last(*_TUNED)
    written = None if named is None else options.text(*_TUNED)
    if written == "full":
        hf_trainer.drop_adapter(collected)
    elif collected.count("model.lora_rank") is None:
        option, place = (named.name, named.place) if named else ("--train_type", place)
        if written == "lora":
            collected.set("model.lora_rank", _LORA_RANK, place, option)
            return
        adapter = "not full" if written is None else repr(written)
        why = "lora by default" if named is None else adapter
        collected.leave_open(
            "model.lora_rank", option, f"{why}: the rank of the adapter is not given", place
        )

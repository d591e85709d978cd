"""ms-swift with Megatron-Core as a run: its command's options, and the YAML of its Ray jobs with
the sections `train` and `rollout` (github.com/modelscope/ms-swift, swift/megatron, 3.x and 4.x)."""

from __future__ import annotations

from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.command_options import Option, Options, option_key
from shardwright_frameworks.configs.keyed_file import KeyedFile
from shardwright_frameworks.configs.keyed_values import degree_of
from shardwright_frameworks.configs.known_options import is_known
from shardwright_frameworks.frameworks import megatron
from shardwright_frameworks.frameworks.flavors import collect_figures
from shardwright_frameworks.shell.text_marks import Word


def is_ray_job(file: KeyedFile) -> bool:
    """Whether a file is a Ray job of ms-swift."""
    return file.has("train", "gpus") and file.has("model") and not file.sections("model")


def collect_ray_job(file: KeyedFile, collected: Collected) -> None:
    """Collects the trainer of a Ray job, whose options are those of the command."""
    given = []
    for path, value in file.values.items():
        is_option = len(path) == 1 or (path[0] == "train" and path != ("train", "gpus"))
        if is_option and not isinstance(value, list):
            place = file.place(path)
            given.append(Option(f"--{path[-1]}", (Word(str(value), place),), place))
    collect_megatron(Options(tuple(given), ()), collected)
    gpus = ("train", "gpus")
    collected.set("devices", degree_of(file.get(*gpus)), file.place(gpus), "train.gpus")


def collect_megatron(options: Options, collected: Collected) -> None:
    """Collects the options of `megatron sft`."""
    # torch_dtype is that of the checkpoint, bf16 in models of these years.
    collected.default(
        "ms-swift 3.x and 4.x, swift/megatron/arguments/megatron_args.py",
        distributed_optimizer=True,
        zero_stage=1,
        precision="bf16",
        micro_batch=1,
        global_batch=16,
        recompute="selective",
    )
    # --model_name is how the trained assistant calls itself.
    named = tuple(option for option in options.given if option.key != "model_name")
    options = Options(named, options.unknowns)
    megatron.collect_megatron(options, collected)
    # ms-swift has options in addition to Megatron's.
    collected.unknown = [
        each for each in collected.unknown if not is_known("ms-swift", option_key(each.option))
    ]
    options.collect_counts(collected, {"max_length": "seq_len", "lora_rank": "model.lora_rank"})
    for option in options.of("model"):
        model = options.value_of(option, collected)
        collected.set("model.name", model, option.place, option.name)
        if model:
            collect_figures(model, "", collected, option.place, option.name)

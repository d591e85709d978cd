"""Megatron-LM's arguments as a run: `collect_megatron`.

Names and meanings: github.com/NVIDIA/Megatron-LM, megatron/arguments.py of v1.0 to v2.6 and
megatron/training/arguments.py of core_v0.4.0 to core_v0.19.0; in addition Megatron-DeepSpeed's
(github.com/deepspeedai/Megatron-DeepSpeed, github.com/bigscience-workshop/Megatron-DeepSpeed,
megatron/arguments.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.command_options import (
    Option,
    Options,
    WordReaders,
    by_key,
    option_key,
    whole,
)
from shardwright_frameworks.configs.interpolation import Key, Open
from shardwright_frameworks.configs.keyed_values import flash_of
from shardwright_frameworks.configs.known_options import is_known
from shardwright_frameworks.imported_run import Value
from shardwright_frameworks.shell.text_marks import Place, Word, unknown_numbers
from simulator.values.pipeline_layout import layout_stages

_DEFAULTS = "Megatron-LM core_v0.14, megatron/training/arguments.py"

DEGREES = by_key(
    {"tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size",
     "cp": "context_parallel_size", "ep": "expert_model_parallel_size",
     "etp": "expert_tensor_parallel_size", "vpp": "num_virtual_stages_per_pipeline_rank"}
)  # fmt: skip
"""Degrees by Megatron-Core's names for them."""
SIZES = by_key(
    {"micro_batch": "micro_batch_size", "global_batch": "global_batch_size",
     "seq_len": "encoder_seq_length seq_length", "model.num_layers": "num_layers",
     "model.hidden_size": "hidden_size", "model.ffn_size": "ffn_hidden_size",
     "model.num_heads": "num_attention_heads", "model.head_dim": "kv_channels",
     "model.vocab_size": "vocab_size", "model.max_positions": "max_position_embeddings",
     "model.num_experts": "num_experts", "model.top_k": "moe_router_topk",
     "model.moe_ffn_size": "moe_ffn_hidden_size", "model.mtp_layers": "mtp_num_layers"}
)  # fmt: skip
"""Fields of the batch and the model by Megatron-LM's names."""
_COUNTS = DEGREES | SIZES | by_key(
    {"tp": "model_parallel_size", "ep": "moe_expert_parallel_size", "micro_batch": "batch_size",
     "cp": "ds_sequence_parallel_size",
     "dp_replicate": "num_distributed_optimizer_instances", "zero_stage": "zero_stage",
     "model.num_layers": "encoder_num_layers",
     "model.vocab_size": "padded_vocab_size pad_vocab_size_to",
     "model.num_experts": "moe_num_experts", "model.top_k": "moe_top_k moe_topk topk"}
)  # fmt: skip
_FLAGS: dict[str, tuple[str, Value, Value]] = {
    "sequence_parallel": ("sequence_parallel", True, False),
    "use_distributed_optimizer": ("distributed_optimizer", True, False),
    "swiglu": ("model.gated_mlp", True, False),
    "untie_embeddings_and_output_weights": ("model.tied_embeddings", False, True),
    "optimizer_cpu_offload": ("optimizer_offload", True, False),
    "cpu_optimizer": ("optimizer_offload", True, False),
    "grad_reduce_in_bf16": ("gradient_reduction", "bf16", None),
    "use_flash_attn": ("flash_attention", True, False),
    "use_flash_attn_v2": ("flash_attention", True, False),
    "use_flash_attn_v1": ("flash_attention", True, False),
    "use_flash_attn_triton": ("flash_attention", True, False),
}
STRATEGIES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""ZeRO stages by Megatron FSDP's names."""
_MARKS = frozenset(
    {"tensor_model_parallel_size", "pipeline_model_parallel_size", "micro_batch_size",
     "num_attention_heads", "hidden_size", "num_layers", "global_batch_size", "seq_length",
     "max_position_embeddings", "model_parallel_size", "lr_decay_style", "data_impl",
     "use_distributed_optimizer", "transformer_impl", "train_iters", "use_mcore_models"}
)  # fmt: skip
UNEVEN = (
    "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split",
    "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers",
    "pipeline_model_parallel_layout",
)  # fmt: skip
"""Options of a pipeline whose stages have different numbers of layers."""
EXPERT_OVERLAP = "overlap_moe_expert_parallel_comm"
# Options of a run that other programs which read a model's sizes do not have.
_OWN = _MARKS - {
    "micro_batch_size",
    "num_attention_heads",
    "hidden_size",
    "num_layers",
    "seq_length",
}
_FIELDS = {
    "num_layers_per_virtual_pipeline_stage": "vpp",
    "pipeline_model_parallel_layout": "vpp",
    "recompute_granularity": "recompute",
    "optimizer": "optimizer",
    "fp8_format": "precision",
}
# Options that no other program has in one section of a file.
_SECTION = frozenset(
    {"num_layers", "hidden_size", "seq_length", "micro_batch_size", "train_iters", "lr"}
)
CORE_NAMES = {"num_moe_experts": "num_experts", "fp8": "fp8_format"}
"""Options of `--yaml-cfg` that have Megatron-Core's names there."""
# Its programs (github.com/NVIDIA/Megatron-LM).
_LAYOUT = frozenset(
    {"num_layers", "tensor_model_parallel_size", "pipeline_model_parallel_size", "yaml_cfg",
     "use_checkpoint_args", "use_mp_args_from_checkpoint_args"}
)  # fmt: skip
_PROGRAM = re.compile(r"(^|/)pretrain_(gpt|bert|t5|mamba|hybrid|ict|vlm|retro|ft)\w*\.py$")
# Parsers of programs around Megatron-LM have further options behind these.
_OF_LAUNCHERS = frozenset({"local_rank", "deepspeed", "deepspeed_config", "node_rank"})


def is_megatron(options: Options, program: str = "") -> bool:
    """Whether options are Megatron-LM's: three options of every run, and either an option of no
    other program, or its program."""
    keys = {option.key for option in options.given}
    is_own = bool(_PROGRAM.search(program))
    # Other programs have some of its options, with other degrees and sizes.
    is_specific = is_own or (bool(keys & _OWN) and bool(keys & _LAYOUT or not program))
    return len(keys & _MARKS) >= 3 and is_specific


def section_of(paths: Iterable[Key]) -> Key | None:
    """The section that has Megatron-LM's options as keys, if one has."""
    keys = dict[Key, set[str]]()
    for path in paths:
        keys.setdefault(path[:-1], set()).add(path[-1])
    listed = any(each.startswith("--") for each in keys.get(("MODEL_ARGS",), ()))
    found = [("MODEL_ARGS",)] if listed else [each for each in keys if keys[each] >= _SECTION]
    return found[0] if len(found) == 1 else None


def options_of_keys(values: Mapping[Key, tuple[Any, Place]], collected: Collected) -> Options:
    """Keys with their values as options; other keys and switches that are off are left out."""
    given = []
    for path, (value, place) in values.items():
        key = CORE_NAMES.get(path[-1], path[-1])
        name = key if key.startswith("--") else f"--{key}"
        if name != key and not is_known("megatron", key):
            continue
        if isinstance(value, Open) or "$" in str(value):
            about = field_of(name)
            if about is not None:
                why = getattr(value, "why", f"{value!r} is filled in elsewhere")
                collected.leave_open(about, name, why, place)
        elif value is not None and value is not False:
            text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
            words = () if value is True else tuple(Word(each, place) for each in text.split())
            given.append(Option(name, words, place))
    return Options(tuple(given), ())


def field_of(option: str) -> str | None:
    """The field of a run that an option determines, alone or with others."""
    key = option_key(option)
    alone = _COUNTS.get(key) or (_FLAGS[key][0] if key in _FLAGS else None)
    return alone or _FIELDS.get(key)


def collect_megatron(options: Options, collected: Collected) -> None:
    """Collects Megatron-LM's arguments and reports options that no version has."""
    options.collect_counts(collected, _COUNTS)
    experts = options.last("num_experts")
    if experts is not None and len({word.plain for word in experts.values}) > 1:
        # Megatron-DeepSpeed's pyramid: layers with different numbers of experts.
        collected.placed.pop("model.num_experts", None)
        why = "layers have different numbers of experts"
        collected.report_unresolved(experts.name, why, experts.place)
    options.collect_flags(collected, _FLAGS)
    for option in options.of("decoder_num_layers"):
        why = "the model has an encoder and a decoder, which are not priced"
        collected.leave_open("model.num_layers", option.name, why, option.place)
    for option in options.of("patch_dim"):
        why = "the encoder of images is not priced"
        collected.report_unresolved(option.name, why, option.place)
    decoder = options.last("decoder_seq_length")
    if decoder is not None and "seq_length" in options and "encoder_seq_length" not in options:
        # Of a model of images and texts: the other is the length of an image.
        collected.placed.pop("seq_len", None)
        options.collect_counts(collected, {"decoder_seq_length": "seq_len"})
    _precision(options, collected)
    _recompute(options, collected)
    _sharding(options, collected)
    _model(options, collected)
    _schedule(options, collected)
    for option in options.of("step_batch_size_schedule"):
        why = "the batch grows during the run"
        collected.leave_open("global_batch", option.name, why, option.place)
    # `model_name` is an option of forks that keep the figures themselves.
    words: WordReaders = {
        "model_name": ("model.name", str),
        "optimizer": ("optimizer", str.lower),
        "attention_backend": ("flash_attention", flash_of),
    }
    options.collect_words(collected, words)
    for option in options.given:
        named = option.name.startswith("--") and not unknown_numbers(option.name)
        if named and not is_known("megatron", option.key) and option.key not in _OF_LAUNCHERS:
            collected.report_unknown(option.name, option.place)
    _pairs(options, collected)
    collected.default(
        _DEFAULTS, tp=1, pp=1, vpp=1, cp=1, ep=1, precision="fp32", recompute="none",
        sequence_parallel=False, distributed_optimizer=False, optimizer="adam",
    )  # fmt: skip
    if not options.last("deepspeed", "deepspeed_config", "zero_stage"):
        collected.default(_DEFAULTS, zero_stage=0)


def _precision(options: Options, collected: Collected) -> None:
    wide: list[Option] = []
    for option in options.given:
        if option.key in ("bf16", "fp16") and options.switched(option):
            if wide and wide[-1].key != option.key:
                collected.report_contradiction(
                    "precision",
                    f"{wide[-1].name} ({wide[-1].place}) and {option.name} ({option.place}): "
                    "Megatron-LM takes one of them",
                    wide[-1].place,
                    option.place,
                )
            wide.append(option)
    for option in (*wide, *options.of("fp8_recipe")):
        collected.use(option.name, option.place)
    named = {option.key for option in wide}
    low = options.last("fp8_format", "fp8_hybrid", "fp8_e4m3", "fp4_format")
    if low is not None and low.key in ("fp8_hybrid", "fp8_e4m3") and not options.switched(low):
        low = None
    if low is not None:
        recipe = options.last("fp8_recipe")
        text = options.text("fp8_recipe") or ""
        precision = "nvfp4" if low.key == "fp4_format" else "mxfp8" if text == "mxfp8" else "fp8"
        of = recipe if recipe is not None and precision == "mxfp8" else low
        collected.set("precision", precision, of.place, of.name)
    elif len(named) == 1:
        collected.set("precision", wide[-1].key, wide[-1].place, wide[-1].name)


def _recompute(options: Options, collected: Collected) -> None:
    kind: str | None = None
    for option in options.given:
        key = option.key
        if key == "recompute_granularity":
            written = options.value_of(option, collected)
            kind = "none" if written is not None and written.lower() == "none" else written
            if written is None:
                collected.leave_open("recompute")
        elif key in ("recompute_activations",) and options.switched(option):
            kind = "selective"
        elif key in ("checkpoint_activations", "deepspeed_activation_checkpointing"):
            if not options.switched(option) or (key.startswith("deepspeed") and kind is None):
                continue
            kind = "full"
        elif key in ("activations_checkpoint_method", "recompute_method"):
            if kind is not None or not option.values:
                continue
            written = options.value_of(option, collected)
            # Before core_v0.4 the method alone switched it on.
            if key != "activations_checkpoint_method" or written in (None, "none"):
                continue
            kind = "full"
        else:
            continue
        if kind is not None:
            collected.set("recompute", kind, option.place, option.name)
    modules = options.last("recompute_modules")
    if modules is not None and kind == "selective" and modules.values:
        written = " ".join(word.plain for word in modules.values)
        if not unknown_numbers(written):
            name = f"{collected.placed['recompute'].option} {modules.name}"
            set_modules(written, name, modules.place, collected)
    layers, method = options.last("recompute_num_layers"), options.text("recompute_method")
    if layers is not None and kind == "full":
        number = whole(options.value_of(layers, collected))
        collected.set("recompute_layers", number, layers.place, layers.name)
    keep_recomputed_layers(collected, method)


def set_modules(written: str, option: str, place: Place, collected: Collected) -> None:
    """Collect the modules of selective recomputation: `mlp moe`, `[mlp,moe]`."""
    names = sorted(re.findall(r"\w+", written))
    if names and names != ["core_attn"]:
        del collected.placed["recompute"]
        collected.set("recompute", f"selective modules: {','.join(names)}", place, option)


def keep_recomputed_layers(collected: Collected, method: str | None) -> None:
    """Drop a number of layers unless the method is `block`, where it counts the recomputed layers
    of a stage (0: none). With `uniform` it is the number of layers per checkpoint (Megatron-Core
    v0.14, transformer_config.py)."""
    layers = collected.placed.pop("recompute_layers", None)
    if layers is None or collected.get("recompute") != "full" or method != "block":
        return
    if layers.value:
        collected.placed["recompute_layers"] = layers
    else:
        del collected.placed["recompute"]
        collected.set("recompute", "none", layers.place, layers.option)


def _sharding(options: Options, collected: Collected) -> None:
    strategy = options.last("data_parallel_sharding_strategy")
    fully = options.last("use_megatron_fsdp", "use_custom_fsdp")
    torch = options.last("use_torch_fsdp2")
    distributed = options.last("use_distributed_optimizer")
    if fully is not None and strategy is not None:
        collected.use(fully.name, fully.place)
    if strategy is not None and fully is None:
        collected.use(strategy.name, strategy.place)
        collected.report_unused(strategy.name, strategy.place, "no effect without Megatron FSDP")
    elif strategy is not None and fully is not None and options.switched(fully):
        written = options.value_of(strategy, collected)
        if written in STRATEGIES:
            collected.set("zero_stage", STRATEGIES[written], strategy.place, strategy.name)
            return
    if torch is not None and options.switched(torch):
        collected.set("zero_stage", 3, torch.place, torch.name)
    elif distributed is not None and options.switched(distributed) and fully is None:
        collected.set_first("zero_stage", 1, distributed.place, distributed.name)


def collect_distributed_optimizer(collected: Collected) -> None:
    """Collect the ZeRO stage of Megatron-Core's distributed optimizer, switched on or off."""
    switch = collected.placed.get("distributed_optimizer")
    if switch is not None:
        collected.set_first("zero_stage", int(bool(switch.value)), switch.place, switch.option)
    elif "distributed_optimizer" in collected.open_keys:
        collected.open_keys.add("zero_stage")


def _model(options: Options, collected: Collected) -> None:
    grouped, groups = options.last("group_query_attention"), options.last("num_query_groups")
    # Without --group-query-attention the number of groups is not looked at.
    kv = options.last("num_key_value_heads")
    for option in options.of("attention_head_type"):
        if options.text(option.key) == "multiquery":
            collected.set("model.num_kv_heads", 1, option.place, option.name)
    if groups is not None and (grouped is not None and options.switched(grouped)):
        number = whole(options.value_of(groups, collected))
        collected.set("model.num_kv_heads", number, groups.place, groups.name)
    elif kv is not None:
        number = whole(options.value_of(kv, collected))
        collected.set("model.num_kv_heads", number, kv.place, kv.name)
    for option in options.of("moe_shared_expert_intermediate_size", "moe_layer_freq"):
        if options.value_of(option, collected) is not None:
            written = "".join(word.plain for word in option.values)
            collect_experts(option.key, written, option.name, option.place, collected)
    hidden = collected.count("model.hidden_size")
    if hidden and collected.get("model.gated_mlp") and "ffn_hidden_size" not in options:
        width = 8 * hidden // 3 // 64 * 64  # megatron/training/arguments.py
        collected.derive("model.ffn_size", width, f"8/3 of the hidden size {hidden}, in 64s")
    window = options.last("window_size")
    if window is not None and window.values and not unknown_numbers(window.values[0].text):
        size = whole(re.split(r"[,(\s]+", window.values[0].plain.strip("(["))[0])
        collected.set("model.sliding_window", size, window.place, window.name)


def collect_experts(key: str, text: str, name: str, place: Place, collected: Collected) -> None:
    """Collect the number of shared experts from their size, or the layers without experts."""
    if key == "moe_layer_freq":
        collected.set("model.first_dense_layers", _first_dense(text), place, name)
        return
    number, expert = whole(text), collected.count("model.moe_ffn_size")
    if number and expert and number % expert == 0:
        collected.set("model.num_shared_experts", number // expert, place, name)


def _first_dense(text: str) -> int | None:
    """The number of dense layers before the first with experts: 3 for `([0]*3+[1]*58)`; None if
    dense layers are between others."""
    layers: list[int] = []
    plain = re.sub(r"[\s()\"']", "", text)
    if plain == "1":
        return 0
    if not re.fullmatch(r"\[[01,]+\](\*\d+)?(\+\[[01,]+\](\*\d+)?)*", plain):
        return None
    for part in plain.split("+"):
        inner, _, times = part.partition("*")
        repeated = int(times or 1)
        if repeated > 10_000:
            return None
        layers += [int(one) for one in inner.strip("[]").split(",") if one] * repeated
    dense = layers.index(1) if 1 in layers else len(layers)
    return dense if 0 not in layers[dense:] else None


def _schedule(options: Options, collected: Collected) -> None:
    """Collect chunks per rank from the layers per virtual stage, or from the layout of stages."""
    each = options.last("num_layers_per_virtual_pipeline_stage")
    pp = collected.count_or_default("pp") if "pp" in collected.placed else None
    layers = collected.count("model.num_layers")
    for option in options.of(*UNEVEN):
        collected.use(option.name, option.place)
        if layers is not None and option.key.startswith("account_for_"):
            layers += 1  # the embedding, or the loss, counts as a layer
        elif option.key.startswith("decoder_"):
            why = "all stages are taken to have equal layers"
            collected.report_unused(option.name, option.place, why)
    if each is not None:
        number = whole(options.value_of(each, collected))
        collected.leave_open("vpp")
        if number and pp and layers:
            stages = layers / pp / number
            if stages == int(stages):
                collected.set("vpp", int(stages), each.place, each.name)
            else:
                collected.report_contradiction(
                    "vpp",
                    f"{each.name} {number} ({each.place}) does not divide {layers} layers on "
                    f"pp={pp} ranks",
                    each.place,
                    collected.place("model.num_layers"),
                )
    layout = options.last("pipeline_model_parallel_layout")
    if layout is not None:
        written = options.value_of(layout, collected)
        collect_layout(written, layout.name, layout.place, collected)
    for option in options.of("enable_zero_bubble", "enable_zbh1_pipeline"):
        if options.switched(option):
            collected.set("schedule", "zb-h1", option.place, option.name)
    for option in options.of(EXPERT_OVERLAP):
        if options.switched(option):
            collect_expert_overlap(option.name, option.place, collected)


def collect_expert_overlap(name: str, place: Place, collected: Collected) -> None:
    """Collect the schedule that hides expert all-to-alls, which has several chunks per rank
    (megatron/core/transformer/transformer_config.py of core_v0.14)."""
    pp, vpp = (collected.count_or_default(key) or 1 for key in ("pp", "vpp"))
    if pp > 1 and vpp > 1:
        collected.set("schedule", "interleaved-overlap", place, name)
    else:
        why = "priced in interleaved pipelines only (pp and vpp of 2 or more)"
        collected.report_unused(name, place, why)


def collect_layout(written: str | None, name: str, place: Place, collected: Collected) -> None:
    """Collects a layout of pipeline stages, and the chunks per rank that follow from it."""
    stages = layout_stages(written or "")
    if written is None or stages is None:
        return
    collected.set("pipeline_layout", re.sub(r"[\s,\"']", "", written), place, name)
    pp = collected.count_or_default("pp") if "pp" in collected.placed else None
    if pp and len(stages) % pp == 0:
        collected.set("vpp", len(stages) // pp, place, name)
    elif pp:
        collected.report_contradiction(
            "vpp",
            f"{name} ({place}) has {len(stages)} stages, which pp={pp} does not divide",
            place,
            collected.place("pp"),
        )


def _pairs(options: Options, collected: Collected) -> None:
    """Report mutually exclusive options."""
    tp = collected.count_or_default("tp")
    sequence = options.last("sequence_parallel")
    if sequence is not None and tp == 1 and options.switched(sequence):
        collected.report_contradiction(
            "sequence_parallel",
            f"{sequence.name} ({sequence.place}) has no effect at tp=1"
            + (f" ({collected.place('tp')})" if collected.place("tp") else ", the default"),
            sequence.place,
            collected.place("tp"),
        )
    granular, activations = (
        options.last("recompute_granularity"),
        options.last("recompute_activations"),
    )
    if granular is not None and activations is not None and options.text(granular.key) == "full":
        collected.report_contradiction(
            "recompute",
            f"{activations.name} ({activations.place}) is selective, {granular.name} "
            f"({granular.place}) full recomputation",
            activations.place,
            granular.place,
        )

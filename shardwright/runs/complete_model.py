"""`complete_model`: the transformer of a published run, with missing figures filled in by rules.

Figures come from the row, otherwise from a well-known model of that name (profiles/data/published/
known_models.toml), otherwise from the rules below. Each figure not in the row is an assumption,
listed as text.

Rules and where they come from: heads of 128 (GPT-3, arXiv 2005.14165, table 2.1, and Llama 3, arXiv
2407.21783, table 3); a feed-forward of 4 h, or of 8/3 h rounded up to 256 where gated (Shazeer,
arXiv 2002.05202, section 3; LLaMA, arXiv 2302.13971, section 2.2); vocabularies of 50257 (GPT-2)
and 32000 (LLaMA); for GPT also biases, learned positions and one table of embeddings (GPT-2 and
Megatron-LM's defaults; Narayanan et al., arXiv 2104.04473, eq. 2).
"""

from __future__ import annotations

import re
from dataclasses import replace

from profiles.errors import InputError
from profiles.model.figures.figures_from_config import figures_of_config
from profiles.model.figures.transformer import Transformer
from profiles.model.loaders import model_named, resolve_model
from shardwright.runs.complete_words import DescribedRow
from shardwright.runs.known_models import KnownModel, known_model
from shardwright.runs.run import PublishedRun
from simulator.values.degrees import Degrees

CATALOG = "catalog:"
"""Prefix of the name of a shipped model in a row."""
# Figures of a transformer that a row may state, and columns of other names.
_FIGURES = (
    *("num_layers", "hidden_size", "ffn_size", "num_heads", "num_kv_heads", "head_size"),
    *("vocab_size", "gated", "tied_embeddings", "num_experts", "top_k", "expert_size"),
    *("num_shared_experts", "first_dense_layers"),
)
_COLUMNS = {"head_size": "head_dim", "gated": "gated_mlp", "expert_size": "moe_ffn_size"}
_GPT_VOCABULARY = 50257
_LLAMA_VOCABULARY = 32000
_USUAL_HEAD = 128
# Widths whose published heads are not those nearest to 128: BigScience's 200B trials, printed as
# NHIDDEN=14400, NHEADS=96 (github.com/bigscience-workshop/bigscience 053adaf,
# train/tr11-176B-ml/chronicles-prequel.md), read 2026-11-21.
_HEADS_OF_WIDTH = {14400: 96}
_SIZE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)\s*([bBtTmM])(?![a-zA-Z0-9])")
_WITHOUT_MTP = re.compile(r"\b(w/o|without|no)[\s_-]?mtp\b", re.I)
_GATED_NAME = re.compile(
    r"llama|mistral|mixtral|qwen|gemma|deepseek|kimi|palm|phi|yi-|baichuan", re.I
)


def complete_model(row: DescribedRow, seq_len: int, degrees: Degrees) -> Transformer:
    """The run's transformer. Positions are learned for the tokens of a sequence; tensor-parallel
    ranks must divide the heads, and stages the layers.

    Raises InputError if the row and the name state too little or contradict each other, and for
    layers that our executor's counts leave out.
    """
    known = _known(row.run.model)
    if known is not None and known.unsupported:
        raise InputError(f"{known.name}: {known.unsupported}")
    if known is not None and known.figures is not None:
        model = _with_options(row.run, _of_known(row, known, known.figures, seq_len))
    else:
        model = _with_options(row.run, _of_rules(row, seq_len, degrees))
    if row.stack.own_executor:
        _need_counted(row.run.model, model)
    return model


def _need_counted(name: str, model: Transformer) -> None:
    shipped = model_named(name.removeprefix(CATALOG))
    kin = figures_of_config(resolve_model(shipped).config, shipped) if shipped else model
    if parts := model.uncounted or kin.uncounted:
        raise InputError(
            f"{name}: rows of our executor are priced by the layers of Llama, BERT and GPT-2, and "
            f"these layers have {parts}; shardwright plan --stack torch, with its degrees pinned, "
            "prices it block by block"
        )


def _with_options(run: PublishedRun, model: Transformer) -> Transformer:
    """The model with the row's window and tokens predicted ahead.

    Raises InputError if a window has no layers, or more than the layers with attention.
    """
    changed = model
    if run.sliding_window is not None or run.window_layers is not None:
        window = model.window if run.sliding_window is None else run.sliding_window
        layers = run.window_layers
        if layers is None:
            layers = model.window_layers or model.attention_count
        if run.window_layers and not window:
            raise InputError(f"window_layers={run.window_layers} need a sliding_window")
        changed = replace(changed, window=window, window_layers=layers if window else 0)
    if run.mtp_layers is not None:
        changed = replace(changed, predicted_ahead=run.mtp_layers)
    return changed


def _known(name: str) -> KnownModel | None:
    """The known model of a name, or the shipped model of `catalog:NAME`."""
    shipped = name.removeprefix(CATALOG)
    if shipped == name:
        return known_model(name)
    figures = figures_of_config(resolve_model(shipped).config, shipped)
    source = "profiles/data/models"
    return KnownModel(name=shipped, patterns=(re.escape(shipped),), source=source, figures=figures)


def parameters_in_name(name: str) -> float | None:
    """The parameter count in a model's name, or None.

    >>> parameters_in_name("GPT 181B")
    181000000000.0
    """
    found = _SIZE.findall(name)
    if not found:
        return None
    number, letter = found[-1]
    return float(number) * {"m": 1e6, "b": 1e9, "t": 1e12}[letter.lower()]


def _of_known(
    row: DescribedRow, known: KnownModel, figures: Transformer, seq_len: int
) -> Transformer:
    run, figures = row.run, _predicting(row, known, figures)
    given = {name: getattr(run, _COLUMNS.get(name, name)) for name in _FIGURES}
    if figures.latent is not None:
        # Latent attention has several head sizes, which a row's single one cannot replace.
        given["head_size"] = None
    if figures.num_experts and not figures.first_dense_layers and not run.first_dense_layers:
        # Configurations print the width of a dense layer even where no layer is dense.
        given["ffn_size"] = None
    stated = {name: value for name, value in given.items() if value is not None}
    model = replace(figures, **stated)
    if model.learned_positions:
        model = replace(model, learned_positions=max(seq_len, 1))
    silent = [
        f"{name} {getattr(figures, name)}"
        for name in given
        if name not in stated and getattr(figures, name) not in (0, False)
    ]
    if figures.latent is not None:
        silent.append("latent attention")
    if figures.state is not None:
        silent.append(f"{figures.state_layers} layers with a state ({figures.state.rule})")
    if figures.window_layers and run.sliding_window is None:
        silent.append(f"windows of {figures.window} keys in {figures.window_layers} layers")
    silent += ["biases"] * figures.biases + ["biases of the experts"] * figures.expert_biases
    if model.learned_positions:
        silent.append(f"{model.learned_positions} learned positions")
    if silent:
        row.assumptions.append(f"{', '.join(silent)} ({known.name}, {known.source})")
    if known.note:
        row.assumptions.append(f"{known.name}: {known.note}")
    return model


def _predicting(row: DescribedRow, known: KnownModel, figures: Transformer) -> Transformer:
    """The figures with the multi-token predictors of the run's framework. Megatron-Bridge takes
    their number from the model's configuration (its DeepSeek-V3 recipe sets mtp_num_layers = 1),
    unless the row's name excludes them; others have none by default (MaxText, configs/base.yml,
    mtp_num_layers: 0)."""
    if not figures.predicted_ahead or row.run.mtp_layers is not None:
        return figures
    count, without = figures.predicted_ahead, bool(_WITHOUT_MTP.search(row.run.model))
    trained = row.stack.name.startswith("megatron-bridge") and not without
    if not without:
        words = "" if trained else "not "
        row.assumptions.append(f"multi-token prediction {words}trained ({known.name} has {count})")
    return figures if trained else replace(figures, predicted_ahead=0)


def _of_rules(row: DescribedRow, seq_len: int, degrees: Degrees) -> Transformer:
    run, assumptions = row.run, row.assumptions
    if run.hidden_size is None:
        raise InputError(f"no hidden size is given and {run.model!r} is not a known model")
    hidden = run.hidden_size
    gated = _gated(run, assumptions)
    # MaxText's own blocks have neither biases nor learned positions (MaxText configs/base.yml).
    gpt = not gated and row.stack.name != "maxtext"
    ffn = run.ffn_size
    expert_size = run.moe_ffn_size or 0
    all_experts = bool(run.num_experts) and not run.first_dense_layers
    if all_experts:
        ffn = 0
    elif ffn is None:
        ffn = 256 * -(-(8 * hidden // 3) // 256) if gated else 4 * hidden
        assumptions.append(
            f"feed-forward {ffn} ({'8/3 of' if gated else '4 times'} the hidden size)"
        )
    heads = run.num_heads or _heads(row, hidden, degrees.tp)
    if run.head_dim is None and hidden % heads:
        raise InputError(f"{heads} heads do not divide the hidden size {hidden}; give head_dim")
    vocabulary = run.vocab_size
    if vocabulary is None:
        vocabulary = _GPT_VOCABULARY if gpt else _LLAMA_VOCABULARY
        assumptions.append(
            f"vocabulary {vocabulary} ({'GPT-2' if gpt else 'LLaMA'}'s, before padding)"
        )
    tied = run.tied_embeddings
    if tied is None:
        tied = gpt
        assumptions.append("tied embeddings" if tied else "embeddings not tied")
    if gpt:
        assumptions.append(f"biases and {seq_len} learned positions, as GPT's")
    if run.num_experts and not (run.top_k and expert_size):
        raise InputError(f"{run.num_experts} experts, but no top_k or no moe_ffn_size is given")
    if run.num_kv_heads is None:
        assumptions.append(f"{heads} key-value heads (as many as heads)")
    model = Transformer(
        num_layers=run.num_layers or 1,
        hidden_size=hidden,
        ffn_size=ffn or 0,
        num_heads=heads,
        num_kv_heads=run.num_kv_heads or heads,
        head_size=run.head_dim or hidden // heads,
        vocab_size=vocabulary,
        gated=gated,
        tied_embeddings=tied,
        num_experts=run.num_experts or 0,
        top_k=run.top_k or 0,
        expert_size=expert_size,
        num_shared_experts=run.num_shared_experts or 0,
        first_dense_layers=run.first_dense_layers or 0,
        learned_positions=seq_len if gpt else 0,
        biases=gpt,
    )
    return model if run.num_layers else _with_layers(row, model, degrees.pp)


def _gated(run: PublishedRun, assumptions: list[str]) -> bool:
    if run.gated_mlp is not None:
        return run.gated_mlp
    if run.num_experts:
        gated = True
    elif run.ffn_size is not None and run.hidden_size is not None:
        gated = run.ffn_size != 4 * run.hidden_size
    else:
        gated = bool(_GATED_NAME.search(run.model))
    assumptions.append("gated feed-forward" if gated else "feed-forward not gated")
    return gated


def _heads(row: DescribedRow, hidden: int, tp: int) -> int:
    """The heads published for this width; otherwise the number that divides the hidden size, is
    divisible by tp and is nearest to heads 128 wide."""
    counts = [n for n in range(tp, hidden // 16 + 1, tp) if hidden % n == 0]
    published = _HEADS_OF_WIDTH.get(hidden)
    if published in counts:
        row.assumptions.append(
            f"{published} heads of {hidden // published} (published for this width)"
        )
        return published
    if not counts:
        raise InputError(f"no number of heads divides both tp={tp} and the hidden size {hidden}")
    heads = min(counts, key=lambda n: (abs(hidden // n - _USUAL_HEAD), n))
    row.assumptions.append(
        f"{heads} heads of {hidden // heads} (nearest to {_USUAL_HEAD} that tp divides)"
    )
    return heads


def _with_layers(row: DescribedRow, model: Transformer, pp: int) -> Transformer:
    """The model with the layers, a multiple of pp, that match the parameter count in its name."""
    wanted = parameters_in_name(row.run.model)
    if wanted is None:
        raise InputError(
            f"no layers are given, and {row.run.model!r} is no known model and has no parameter "
            "count"
        )
    layer = replace(model, num_layers=model.first_dense_layers + 2).parameters
    layer -= replace(model, num_layers=model.first_dense_layers + 1).parameters
    base = replace(model, num_layers=model.first_dense_layers + 1).parameters
    layers = (wanted - base) / layer + model.first_dense_layers + 1
    if layers < 1:
        raise InputError(
            f"{row.run.model!r} names fewer parameters than its embeddings and one layer have",
        )
    count = max(1, round(layers / pp)) * pp
    row.assumptions.append(
        f"{count} layers ({wanted / 1e9:g} billion parameters in the name need {layers:.1f}; "
        f"a multiple of pp={pp})"
    )
    return replace(model, num_layers=count)

"""Bytes that a sized run stores and sends: data set, checkpoints, final weights.

Without values in the price file (docs/prices.md, [storage]):

- the data set is as many tokens as the run reads, of 2 bytes if the vocabulary has fewer than
  65,500 entries, otherwise of 4 (Megatron-LM, core/datasets/indexed_dataset.py,
  DType.optimal_dtype);
- two whole checkpoints are kept, the last and the one before (assumed);
- the weights, or the adapters, leave the provider once in 16 bits (assumed).
"""

from __future__ import annotations

from pathlib import Path

from profiles.hardware.prices.price_file import storage_of
from profiles.hardware.prices.storage_price import usual_storage
from profiles.model.figures.transformer import Transformer
from profiles.units import format_bytes, format_usd
from simulator.goodput.reliability_inputs import ReliabilityInputs
from simulator.money import RunStorage
from simulator.training_run.work.adapter_work import adapter_parameters

_GIB = 2.0**30
_NARROW_VOCABULARY = 65500
_CHECKPOINTS = 2.0
_SENT_BYTES = 2.0


def run_storage(
    model: Transformer,
    tokens: float,
    lora_rank: int,
    reliability: ReliabilityInputs,
    prices: Path | None,
    assumed: list[str],
) -> RunStorage:
    """Storage and egress of a run on so many tokens; adds its assumptions to `assumed`."""
    own = None if prices is None else storage_of(prices)
    price = usual_storage() if own is None or prices is None else own.price(prices)
    trained = model.num_layers * adapter_parameters(model, lora_rank) if lora_rank else None
    parameters = float(model.parameters if trained is None else trained)
    token_bytes = 2.0 if model.vocab_size < _NARROW_VOCABULARY else 4.0

    def or_default(gib: float | None, otherwise: float) -> float:
        return otherwise if gib is None else gib * _GIB

    found = RunStorage(
        price=price,
        dataset_bytes=or_default(None if own is None else own.dataset_gib, token_bytes * tokens),
        checkpoint_bytes=reliability.checkpoint_bytes_per_parameter * parameters,
        checkpoints=_CHECKPOINTS
        if own is None or own.checkpoints_kept is None
        else own.checkpoints_kept,
        sent_bytes=or_default(None if own is None else own.egress_gib, _SENT_BYTES * parameters),
    )
    assumed.append(storage_words(found))
    return found


def storage_words(storage: RunStorage) -> str:
    """`2 checkpoints of 5.2 TiB and 56 TiB of data kept at $0.0215 per GiB and month, ...`."""
    price = storage.price
    return (
        f"{storage.checkpoints:g} checkpoints of {format_bytes(storage.checkpoint_bytes)} and "
        f"{format_bytes(storage.dataset_bytes)} of data kept at "
        f"{format_usd(price.usd_per_gib_month.value)} per GiB and month, "
        f"{format_bytes(storage.sent_bytes)} sent at "
        f"{format_usd(price.egress_usd_per_gib.value)} per GiB ({price.words}; "
        "--prices FILE, [storage])"
    )

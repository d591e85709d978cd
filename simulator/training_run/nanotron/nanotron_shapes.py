"""`NanotronShapes`: sizes of the tensors on nanotron's first rank, for one micro-batch."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.work.stage_share import split_stages


@dataclass(frozen=True, slots=True, kw_only=True)
class NanotronShapes:
    """Activations in bytes (bf16, all divided by tp but `whole`), weights in elements.

    whole, shard   hidden states of the whole sequence, and the rank's part of them
    query, key_value, inner, logits, softmax_sums   of a layer's or the head's inner tensors
    projection, out, down, table   weights of a layer, and of the embedding
    parameters     name and elements of every weight, in order
    is_batched     several sequences: tensors whose dims are turned are copied
    runs_again     layers keep their input only
    buckets        torch's DistributedDataParallel keeps buckets of all gradients
    state_ranks    over so many ranks the optimizer's states are divided
    """

    tp: int
    num_layers: int
    in_flight: int
    num_microbatches: int
    has_embedding: bool
    has_head: bool
    is_tied: bool
    is_batched: bool
    runs_again: bool
    buckets: bool
    state_ranks: int
    whole: int
    shard: int
    query: int
    key_value: int
    inner: int
    logits: int
    softmax_sums: int
    projection: int
    out: int
    down: int
    table: int
    parameters: tuple[tuple[str, int], ...]

    @property
    def num_parameters(self) -> int:
        return sum(size for _, size in self.parameters)

    @property
    def lasting_bytes(self) -> float:
        """bf16 weights and fp32 gradients in whole, fp32 masters of the rank's part: one storage
        each, made before the first step."""
        return self.num_parameters * (2 + 4 + 4 / self.state_ranks)


def nanotron_shapes(run: TrainingRun) -> NanotronShapes | None:
    """Of the first rank of a run; None where nanotron's Llama does not cover it (experts, latent
    attention, context parallelism, chunks, recomputation of a part, offload, adapters)."""
    model = run.model
    if (
        model.num_expert_layers
        or model.latent is not None
        or not model.gated
        or run.cp > 1
        or run.vpp > 1
        or run.recompute not in ("none", "full")
        or run.recompute_layers
        or run.lora
        or run.optimizer_offload
        or run.activation_offload
        or run.schedule not in ("none", "1f1b", "gpipe")
        or (run.tp > 1 and not run.sequence_parallel)
    ):
        return None
    first = split_stages(run, "cost")[0]
    tp, tokens, hidden = run.tp, run.micro_batch * run.seq_len, model.hidden_size
    query = model.num_heads * model.head_size
    key_value = 2 * model.num_kv_heads * model.head_size
    sizes = {
        "query, key and value": (query + key_value) * hidden // tp,
        "out": query * hidden // tp,
        "gate and up": 2 * model.ffn_size * hidden // tp,
        "down": model.ffn_size * hidden // tp,
    }
    table = model.vocab_size * hidden // tp
    parameters = [("embedding", table)] if first.has_embedding else []
    for layer in range(first.num_layers):
        parameters += [(f"{name} {layer}", size) for name, size in sizes.items()]
    is_tied = model.tied_embeddings and first.has_embedding
    if first.has_head and not is_tied:
        parameters.append(("head", table))
    count = run.num_microbatches
    return NanotronShapes(
        tp=tp,
        num_layers=first.num_layers,
        in_flight=count if run.schedule == "gpipe" and run.pp > 1 else min(run.pp, count),
        num_microbatches=count,
        has_embedding=first.has_embedding,
        has_head=first.has_head,
        is_tied=is_tied,
        is_batched=run.micro_batch > 1,
        runs_again=run.recompute == "full",
        buckets=run.zero_stage == 0 and run.dp > 1,
        state_ranks=run.dp if run.zero_stage else 1,
        whole=2 * tokens * hidden,
        shard=2 * tokens * hidden // tp,
        query=2 * tokens * query // tp,
        key_value=2 * tokens * key_value // tp,
        inner=2 * tokens * model.ffn_size // tp,
        logits=2 * tokens * model.vocab_size // tp,
        softmax_sums=4 * tokens * model.num_heads // tp,
        projection=sizes["query, key and value"],
        out=sizes["out"],
        down=sizes["down"],
        table=table,
        parameters=tuple(parameters),
    )

"""The tracer against torch itself: its FLOP counter, its allocator, its checkpointing."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from profiles.errors import ModelError, TraceError
from profiles.model.building.build import build_model
from profiles.model.fake_tensors.trace_fakes import plain_kernels
from profiles.model.graph import ModelGraph, OpKind, Phase
from profiles.model.loaders import ModelSpec, model_names, resolve_model
from profiles.model.tracing.trace import trace_graph
from profiles.model.tracing.traced import trace_model
from tests.profiles.small_models import CONFIGS, Counted

ROOT = Path(__file__).parents[2]
FACTORIES = {
    name: f"tests.executor.tiny_models:{name}"  # the examples on small images
    for name in ("resnet50", "unet")
}
SEQUENCE = 16


def spec_of(name: str, folder: Path) -> ModelSpec:
    if name in FACTORIES:
        return resolve_model(FACTORIES[name])
    path = folder / f"{name}.json"
    path.write_text(json.dumps(CONFIGS[name]))
    return resolve_model(str(path))


_GRAPHS: dict[object, ModelGraph] = {}


def traced(name: str, folder: Path, **options: Any) -> ModelGraph:
    """The graph of a small model, traced once for all tests."""
    settings = {"micro_batch": 2, "sequence_length": SEQUENCE, "dtype": "float32", "target": "cpu"}
    settings |= options
    key = (name, *sorted(settings.items()))
    if key not in _GRAPHS:
        _GRAPHS[key] = trace_graph(spec_of(name, folder), **settings)
    return _GRAPHS[key]


def traced_as(text: str, *, batch: int = 2, length: int = 1) -> ModelGraph:
    return trace_graph(
        resolve_model(text), micro_batch=batch, sequence_length=length, dtype="float32"
    )


def full_attention_flop(graph: ModelGraph) -> int:
    """FLOPs with causal attention counted in full, as torch's counter does."""
    total = 0
    for block in graph.blocks:
        for op in (*block.forward_ops, *block.backward_ops):
            halved = op.attention is not None and op.attention.causal
            total += op.work_flop * (2 if halved else 1)
    return total


@pytest.mark.parametrize("name", [*CONFIGS, *FACTORIES])
def test_flops_equal_torchs_own_counter(name: str, tmp_path: Path) -> None:
    built = build_model(
        spec_of(name, tmp_path), micro_batch=2, sequence_length=SEQUENCE, device="cpu"
    )
    # The counter lacks the CPU's fused attention: force the decomposed one, which it knows.
    decomposed = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)
    with (
        plain_kernels(),
        decomposed,
        FlopCounterMode(display=False) as counter,
    ):
        loss = built.loss_fn(built.call(built.module, *built.args), built.targets)
        loss.backward()
    graph = traced(name, tmp_path)
    mine = full_attention_flop(graph)
    attention = sum(
        op.work_flop * (2 if op.attention.causal else 1)
        for block in graph.blocks
        for op in block.backward_ops
        if op.attention is not None
    )
    # A fused backward repeats the scores, one product in five, which the decomposed one keeps.
    assert mine - attention / 5 == pytest.approx(counter.get_total_flops(), rel=1e-3)


class LiveBytes(torch.utils._python_dispatch.TorchDispatchMode):
    """Bytes of storages on real tensors, counted by weak references: an oracle of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        import weakref

        out = func(*args, **(kwargs or {}))
        for x in torch.utils._pytree.tree_leaves(out):
            if isinstance(x, torch.Tensor):
                storage = x.untyped_storage()
                key = storage._cdata
                if key in self._known or key in self.ignored:
                    continue
                size = storage.nbytes()
                self.live += size
                self.peak = max(self.peak, self.live)

                def free(_: Any, key: int = key, size: int = size) -> None:
                    self._known.pop(key, None)
                    self.live -= size

                self._known[key] = weakref.ref(storage, free)
        return out


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "vit", "qwen3"])
def test_saved_bytes_equal_what_real_tensors_hold(name: str, tmp_path: Path) -> None:
    built = build_model(
        spec_of(name, tmp_path), micro_batch=2, sequence_length=SEQUENCE, device="cpu"
    )
    counter = LiveBytes()
    held = [*built.module.parameters(), *built.module.buffers(), *built.args]
    counter.ignored = {x.untyped_storage()._cdata for x in held}
    with plain_kernels(), counter:
        loss = built.loss_fn(built.call(built.module, *built.args), built.targets)
        kept = counter.live
        counter.peak = counter.live
        for p in built.module.parameters():
            p.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
        loss.backward()
    graph = traced(name, tmp_path)
    # What one block makes and several use is kept once.
    boundaries = sum(s.memory_bytes for block in graph.blocks for s in block.outputs)
    mine = sum(block.saved_bytes for block in graph.blocks) + boundaries
    assert mine == pytest.approx(kept, rel=0.01)
    # Peak of the backward: what is kept up to a block, and the most that it adds. Autograd holds
    # the gradient of a tied weight from its last use to its first.
    held_bytes, peak, before = 0, 0, graph.blocks[-1]
    tied = [sum(p.spec.memory_bytes for p in b.parameters if p.tied_to) for b in graph.blocks]
    for position, block in enumerate(graph.blocks):
        held_bytes += block.saved_bytes + sum(s.memory_bytes for s in before.outputs)
        before = block
        waiting = sum(tied[position + 1 :])
        peak = max(peak, held_bytes + waiting + block.backward_peak_bytes)
    assert peak == pytest.approx(counter.peak, rel=0.01)


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_shipped_models_trace(every: bool) -> None:
    """Two models with layers of several kinds, or every model."""
    for name in model_names() if every else ("deepseek-v3", "whisper-large"):
        length = {"bert-large": 128, "whisper-large": 64}.get(name, 256)
        graph = trace_graph(
            resolve_model(name), micro_batch=2, sequence_length=length, dtype="bfloat16"
        )
        assert graph.cuttable, (name, graph.why_not_cuttable)
        assert len(graph.kinds) < len(graph.chain)
        # Forward and backward of a transformer: twice the forward in the backward, or more.
        assert 1.9 < graph.backward_flop / graph.forward_flop < 5


def test_what_a_rank_is_given_of_a_sample_is_counted(tmp_path: Path) -> None:
    # Tokens in int64, as inputs and as targets; pixels in fp32, and a class in int64 for each.
    assert traced("llama", tmp_path).sample_bytes == 2 * 8 * SEQUENCE
    images = trace_graph(
        resolve_model("examples.unet:build"), micro_batch=3, sequence_length=1, dtype="float32"
    )
    assert images.sample_bytes == 64 * 64 * (4 + 8)


@pytest.mark.slow
def test_405b_traces_in_little_memory() -> None:
    code = (
        # Not getrusage: its peak is at least that of the process that started this one.
        "from pathlib import Path\n"
        "from profiles.model.loaders import resolve_model\n"
        "from profiles.model.tracing.trace import trace_graph\n"
        "g = trace_graph(resolve_model('llama-3.1-405b'), micro_batch=1, sequence_length=8192, "
        "dtype='bfloat16')\n"
        "peak = [x for x in Path('/proc/self/status').read_text().splitlines() if 'VmHWM' in x]\n"
        "print(len(g.chain), len(g.kinds), g.full_parameter_count, int(peak[0].split()[1]) * 1024)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    blocks, kinds, parameters, memory = map(int, done.stdout.split())
    # 126 layers, an embedding and a head; 405 853 388 800 parameters (arXiv 2407.21783: 405B).
    assert (blocks, kinds, parameters) == (128, 3, 405_853_388_800)
    assert memory < 1e9


def test_attention_of_an_accelerator_is_fused_causal_and_keeps_few_kv_heads(tmp_path: Path) -> None:
    graph = traced("llama", tmp_path, target="gpu")
    calls = [op for op in graph.kinds[1].forward_ops if op.kind is OpKind.ATTENTION]
    assert len(calls) == 1
    shape = calls[0].attention
    assert shape is not None
    assert (shape.heads, shape.kv_heads, shape.causal) == (4, 2, True)
    # No score matrix is materialised: nothing as large as batch x heads x S x S is written.
    largest = max(op.written_bytes for op in graph.kinds[1].forward_ops)
    assert largest <= 2 * SEQUENCE * 96 * 4


def test_routing_is_traced_by_expected_shapes() -> None:
    graph = trace_graph(
        resolve_model("mixtral-8x7b"), micro_batch=2, sequence_length=1024, dtype="bfloat16"
    )
    layer = graph.kinds[1]
    assert layer.expected_shapes
    # Two of eight experts per token: three matrices of 4096 x 14336, 2 FLOPs per multiply-add.
    experts = [op for op in layer.forward_ops if op.name == "_grouped_mm"]
    assert sum(op.work_flop for op in experts) == 2 * 2 * 2048 * 3 * 4096 * 14336


def test_attention_is_split_beside_experts_that_are_not_run() -> None:
    """Eight experts in one tensor are too large to run: random numbers stand in their place."""
    model = trace_model(
        resolve_model("mixtral-8x7b"),
        sequence_length=128,
        dtype="bfloat16",
        tp_degrees=(1, 2),
        target="gpu",
    )
    assert model.why_not_tensor_parallel == ""
    assert model.tp_degrees == (1, 2)


def test_tensor_parallel_ranks_hold_their_share(tmp_path: Path) -> None:
    one = traced("llama", tmp_path, target="gpu").kinds[1]
    two = traced("llama", tmp_path, target="gpu", tp=2).kinds[1]
    assert two.full_parameter_count == one.full_parameter_count
    # All but the two norms of 64 are halved.
    assert two.parameter_count == (one.parameter_count - 128) // 2 + 128
    products = sum(op.work_flop for op in one.forward_ops if op.kind is OpKind.MATMUL)
    halved = sum(op.work_flop for op in two.forward_ops if op.kind is OpKind.MATMUL)
    assert products == 2 * halved
    forward = [c for c in two.collectives if c.phase is Phase.FORWARD]
    backward = [c for c in two.collectives if c.phase is Phase.BACKWARD]
    assert [c.size_bytes for c in forward] == [2 * SEQUENCE * 64 * 4] * 2
    assert [c.module for c in backward] == ["self_attn", "mlp"]


def test_a_degree_that_does_not_divide_the_heads_says_which_do(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"tp=3 does not divide num_attention_heads=4; use one of"):
        traced("llama", tmp_path, tp=3)


def test_other_micro_batches_are_exact(tmp_path: Path) -> None:
    """From the line of two others; on a CPU micro-batch 1 is traced directly."""
    small = resolve_model("tests.profiles.small_models:by_turns")
    for spec, batch in ((spec_of("t5", tmp_path), 5), (small, 1)):
        settings = {"sequence_length": SEQUENCE, "dtype": "float32", "target": "cpu"}
        made = trace_model(spec, **settings).at(batch)
        direct = trace_graph(spec, micro_batch=batch, **settings)
        assert [kind.kind for kind in made.kinds] == [kind.kind for kind in direct.kinds]


def test_products_of_every_sample_with_every_other_are_exact() -> None:
    """Of the scores of n samples, 32 n^2 FLOPs, two traces made 160 n - 192."""
    spec = resolve_model("tests.profiles.small_models:pairs")
    traced = trace_model(spec, sequence_length=1, dtype="float32", target="cpu")
    assert traced.at(16).forward_flop == 2 * (2 * 16 * 8 * 16) + 2 * 16 * 16 * 16


def test_quadratic_graphs_are_traced_at_two_more_sizes_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each size was traced, and from the beginning: a plan of experts with a capacity took 82 s."""
    spec = resolve_model("tests.profiles.small_models:pairs")
    settings = {"sequence_length": 1, "dtype": "float32", "target": "cpu"}
    traced = trace_model(spec, **settings)
    direct = {batch: trace_graph(spec, micro_batch=batch, **settings) for batch in (4, 8, 16, 64)}
    made = {batch: traced.at(batch) for batch in (4, 8)}
    monkeypatch.setattr("profiles.model.tracing.trace.trace_graph", None)
    made |= {batch: traced.at(batch) for batch in (16, 64)}
    for batch, graph in made.items():
        assert graph.kinds == direct[batch].kinds
        assert graph.chain == direct[batch].chain


def test_units_compute_in_their_own_type_whatever_they_are_given() -> None:
    """As in the run, where FSDP2 casts their inputs: a diffusion transformer with a step number in
    fp32 was priced with twice the bytes, and products in fp32."""
    spec = resolve_model("tests.profiles.small_models:timed")
    graph = trace_graph(spec, micro_batch=2, sequence_length=1, dtype="bfloat16")
    products = [op for block in graph.blocks for op in (*block.forward_ops, *block.backward_ops)]
    assert {op.dtype for op in products if op.matmul} == {"bfloat16"}
    # Between the layers the code makes fp32 of it, which is what a message carries.
    assert {spec.dtype for block in graph.kinds[1:] for spec in block.inputs} == {"float32"}


def test_layers_that_are_given_a_wider_type_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The casts of their inputs were counted as code around the skipped ones, so that every layer
    was traced: rotations of image towers are in fp32, and Kimi K2.5 took minutes."""
    monkeypatch.setattr(Counted, "calls", 0)
    spec = resolve_model("tests.profiles.small_models:timed_in_nine_layers")
    graph = trace_graph(spec, micro_batch=2, sequence_length=1, dtype="bfloat16")
    assert len(graph.chain) == 1 + 9 + 1
    assert Counted.calls == 3  # no second pass: the last layer is as the first
    assert len({ref.kind for ref in graph.chain[1:-1]}) == 1


def test_graphs_that_are_no_polynomials_are_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four are known, of which three do not give the fourth."""
    spec = resolve_model("tests.profiles.small_models:pairs")
    traced = trace_model(spec, sequence_length=1, dtype="float32", target="cpu")
    other = traced.at(5)
    monkeypatch.setattr(traced, "_trace_at", lambda *_: replace(other, micro_batch=8))
    assert traced.at(8).forward_flop == other.forward_flop
    monkeypatch.undo()
    assert traced.at(16).forward_flop == 2 * (2 * 16 * 8 * 16) + 2 * 16 * 16 * 16


@pytest.mark.parametrize(
    ("name", "depths"),
    [
        ("t5", ("num_layers", "num_decoder_layers")),
        pytest.param("whisper", ("encoder_layers", "decoder_layers"), marks=pytest.mark.slow),
    ],
)
def test_decoder_layers_that_are_skipped_are_those_of_a_whole_trace(
    name: str, depths: tuple[str, str], tmp_path: Path
) -> None:
    """Of four layers none is skipped: the last differs, the first to make the encoder's gradient.
    A bias that layers hand on as it was given is no tensor between blocks in either. Whisper's
    layers pass on the memory order of its convolutions, transposed."""
    kinds = {}
    for layers in (4, 8):
        path = tmp_path / f"{name}-{layers}.json"
        path.write_text(json.dumps({**CONFIGS[name], **dict.fromkeys(depths, layers)}))
        graph = traced_as(str(path), length=SEQUENCE)
        kinds[layers] = [kind.kind for kind in graph.kinds]
        assert len(graph.chain) > 2 * layers
    assert kinds[4] == kinds[8]


def test_layers_of_two_kinds_by_turns_are_all_traced() -> None:
    """Five layers A B A B A of one structure: the fourth is like the second, the third is not."""
    graph = traced_as("tests.profiles.small_models:by_turns", length=SEQUENCE)
    made = [{op.name for op in graph.kinds[ref.kind].forward_ops} for ref in graph.chain]
    assert ["tanh" in names for names in made] == [True, False, True, False, True]


def test_a_cached_trace_is_equal_and_needs_no_torch(tmp_path: Path) -> None:
    spec = spec_of("llama", tmp_path)
    cache = tmp_path / "cache"
    first = trace_model(spec, sequence_length=SEQUENCE, dtype="float32", cache=cache)
    again = trace_model(spec, sequence_length=SEQUENCE, dtype="float32", cache=cache)
    assert first.at(4) == again.at(4)
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from profiles.model.loaders import resolve_model\n"
        "from profiles.model.tracing.traced import trace_model\n"
        f"trace_model(resolve_model({str(tmp_path / 'llama.json')!r}), sequence_length={SEQUENCE}, "
        f"dtype='float32', cache=Path({str(cache)!r})).at(4)\nprint('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
    broken = next(cache.glob("*.json"))
    broken.write_text(broken.read_text()[:100])
    with pytest.warns(UserWarning, match="traced again"):
        assert trace_model(spec, sequence_length=SEQUENCE, dtype="float32", cache=cache).at(
            4
        ) == first.at(4)


def test_recomputing_a_block_keeps_its_inputs_only(tmp_path: Path) -> None:
    """What full recomputation is derived from, against torch's own checkpoint on a real layer."""
    built = build_model(
        spec_of("llama", tmp_path), micro_batch=2, sequence_length=SEQUENCE, device="cpu"
    )
    for layer in built.module.model.layers:
        original = layer.forward
        layer.forward = lambda *a, _f=original, **k: checkpoint(_f, *a, use_reentrant=False, **k)
    counter = LiveBytes()
    held = [*built.module.parameters(), *built.module.buffers(), *built.args]
    counter.ignored = {x.untyped_storage()._cdata for x in held}
    with plain_kernels(), counter:
        loss = built.loss_fn(built.call(built.module, *built.args), built.targets)
        kept = counter.live
    assert loss.requires_grad
    graph = traced("llama", tmp_path)
    blocks = graph.blocks
    layers = blocks[1:-1]
    mine = sum(s.memory_bytes for block in blocks for s in block.inputs)
    mine += blocks[0].saved_bytes + blocks[-1].saved_bytes
    assert len(layers) == 6
    assert mine == pytest.approx(kept, rel=0.01)


def test_unusual_modules_trace_as_one_block_or_more() -> None:
    graph = traced_as("tests.profiles.small_models:odd", batch=4)
    names = {op.name for block in graph.kinds for op in block.forward_ops}
    assert any("embedding_bag" in name for name in names)
    # The shared layer counts once as parameters: bag 800, lstm 2176, three layers used, head 51.
    assert graph.full_parameter_count == 50 * 16 + (2 * 64 * 16 + 2 * 64) + 3 * 272 + 51


def test_a_unet_is_cut_everywhere_and_its_skips_are_branches() -> None:
    graph = traced_as("examples.unet:build")
    entries = [ref.entry for ref in graph.chain]
    # Two convolutions per level down (5) and up (4), an upsampling per level, and the head.
    assert len(entries) == 5 * 2 + 4 * 3 + 1
    # Every level's features, made by its second convolution, are joined behind the upsampling.
    skips = {
        (entries[b.producer], entries[b.consumers[-1]]): b.spec.shape
        for b in graph.branches
        if b.consumers[-1] > b.producer + 1
    }
    assert skips == {
        (f"down.{level}.2", f"grow.{level}"): (2, 32 * 2**level, 64 // 2**level, 64 // 2**level)
        for level in range(4)
    }


def test_towers_are_branches_and_a_plain_chain_has_none(tmp_path: Path) -> None:
    graph = traced_as("examples.two_tower:build")
    entries = [ref.entry for ref in graph.chain]
    into = {k: {b.producer for b in graph.branches if k in b.consumers} for k in range(12)}
    # The text tower takes nothing from the image tower; the head of both takes the image's vector.
    assert into[entries.index("text.embedding")] == set()
    assert {entries[k] for k in into[entries.index("text.head")]} == {
        "image.head",
        "text.layers.3",
    }
    assert traced("llama", tmp_path).branches == ()


def test_resnet50_has_the_published_number_of_parameters() -> None:
    graph = traced_as("examples.resnet50:build")
    # 25.6 M (He et al., table 1 and torchvision's 25 557 032).
    assert graph.full_parameter_count == 25_557_032
    assert len(graph.chain) == 19


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("llama-3.1-80b", "Did you mean 'llama-3.1-8"),
        ("no.such.module:build", "cannot import"),
        ("tests.profiles.small_models:nothing", "has no 'nothing'"),
        ("tests.profiles.small_models:not_a_tuple", "must return"),
        (
            "tests.profiles.small_models:loss_before_targets",
            "the fourth, loss_fn, is no function but Tensor",
        ),
        ("tests.profiles.small_models:no_batch", "dimension 0 of every input must be the batch"),
    ],
)
def test_models_that_cannot_be_loaded_say_why(text: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build_model(resolve_model(text), micro_batch=1, sequence_length=4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_attention_heads": 5, "num_key_value_heads": 5}, "does not divide hidden_size=64"),
        ({"num_key_value_heads": 3}, "does not divide num_attention_heads=4"),
        ({"architectures": ["LlamaForNothing"]}, "transformers has no LlamaForNothing"),
        ({"architectures": []}, "'architectures' is missing"),
        ({"num_hidden_layers": -1}, "must not be negative"),
        ({"model_type": "lama"}, "transformers has no LlamaForCausalLM"),
    ],
)
def test_impossible_configurations_say_why(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIGS["llama"], **change}))
    with pytest.raises(ModelError, match=message):
        build_model(resolve_model(str(path)), micro_batch=1, sequence_length=4)

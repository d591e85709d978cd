"""W of traced blocks against products counted by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from profiles.hardware.catalogue.device import BlockPoint, Measurements
from profiles.hardware.probe.measured_blocks import with_blocks
from profiles.model.graph import Block, MatmulShape, Op, OpKind, Parameter, Phase, TensorSpec
from simulator.memory.blocks import stage_bytes
from simulator.traced.block_cost import price_block
from simulator.traced.predict import predict
from simulator.traced.weight_gradients import weight_gradient_ops, weight_gradient_s
from simulator.training_run.framework.framework import load_stack
from simulator.values.plan import Recompute
from tests.planner.hand_made_model import HandMadeModel
from tests.simulator.hand_made import cluster, device, plan


def product(module, rows, columns, inner, phase):
    return Op(
        name="mm",
        kind=OpKind.MATMUL,
        phase=phase,
        module=module,
        dtype="bfloat16",
        work_flop=2 * rows * columns * inner,
        read_bytes=2 * (rows + columns) * inner,
        written_bytes=2 * rows * columns,
        matmul=MatmulShape(batch=1, m=rows, n=columns, k=inner),
    )


def bias_sum(module, size):
    return Op(
        name="sum",
        kind=OpKind.MEMORY,
        phase=Phase.BACKWARD,
        module=module,
        dtype="bfloat16",
        work_flop=0,
        read_bytes=1,
        written_bytes=2 * size,
    )


def linear(rows, inputs, outputs, *, trainable=True, bias=True):
    """A linear layer's block as torch runs it: y = x W^T + b, W [outputs, inputs]."""
    sizes = [("layer.weight", (outputs, inputs))] + [("layer.bias", (outputs,))] * bias
    return Block(
        kind=f"linear {rows} {inputs} {outputs} {trainable}",
        label="Linear",
        inputs=(),
        outputs=(),
        forward_ops=(product("layer", rows, outputs, inputs, Phase.FORWARD),),
        backward_ops=(
            product("layer", outputs, inputs, rows, Phase.BACKWARD),  # of W: g^T x
            product("layer", rows, inputs, outputs, Phase.BACKWARD),  # of x: g W
            *[bias_sum("layer", outputs)] * bias,
        ),
        parameters=tuple(
            Parameter(
                name=name,
                spec=TensorSpec(shape=shape, dtype="bfloat16"),
                full_shape=shape,
                trainable=trainable,
            )
            for name, shape in sizes
        ),
        saved=(),
        attention_module="",
        attention_input_bytes=0,
        forward_peak_bytes=0,
        backward_peak_bytes=0,
    )


@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"),
    [(64, 16, 32), (32, 16, 32), (16, 16, 32), (16, 16, 16)],
    ids=["all unlike", "rows as outputs", "rows as inputs", "square"],
)
def test_a_linear_layer_has_as_much_w_as_i_in_products(rows, inputs, outputs):
    # 2 rows inputs outputs for each of the two products; the bias is a sum, of W.
    block = linear(rows, inputs, outputs)
    found = weight_gradient_ops(block)
    ops = [block.backward_ops[index] for index in found]
    assert sum(op.work_flop for op in ops) == 2 * rows * inputs * outputs
    assert [op.name for op in ops] == ["mm", "sum"]


def test_w_of_a_layer_is_not_more_because_another_is_of_its_size():
    # The first layer's output is multiplied by itself in the first layer's module: a product that
    # is neither of a weight nor of its size. It has one W and the second layer of its size another.
    rows, inputs, outputs = 64, 16, 32
    block = linear(rows, inputs, outputs, bias=False)
    other = replace(block.parameters[0], name="second.weight")
    both = replace(
        block,
        forward_ops=(
            *block.forward_ops,
            product("layer", rows, rows, outputs, Phase.FORWARD),
            product("second", rows, outputs, inputs, Phase.FORWARD),
        ),
        backward_ops=(
            product("layer", outputs, inputs, rows, Phase.BACKWARD),  # of W: g^T x
            product("layer", outputs, inputs, rows, Phase.BACKWARD),  # of no weight's W
            product("layer", rows, inputs, outputs, Phase.BACKWARD),
            product("second", outputs, inputs, rows, Phase.BACKWARD),
            product("second", rows, inputs, outputs, Phase.BACKWARD),
        ),
        parameters=(*block.parameters, other),
    )
    assert weight_gradient_ops(both) == {0: 1.0, 3: 1.0}


def test_a_frozen_layer_has_no_w():
    assert weight_gradient_ops(linear(64, 16, 32, trainable=False)) == {}


def test_a_small_llama_block_has_twice_its_weights_times_the_tokens():
    pytest.importorskip("transformers", reason="building this llama needs transformers")
    from profiles.model.loaders import resolve_model
    from profiles.model.tracing.traced import trace_model

    spec = resolve_model("tiny-llama-demo")
    graph = trace_model(spec, sequence_length=128, dtype="bfloat16").at(2)
    layer = next(block for block in graph.kinds if block.label == "LlamaDecoderLayer")
    # Hidden 384, 128 for keys and values, inner 1024; 2 x 128 tokens. q and o 384 x 384, k and v
    # 128 x 384, three products of 1024 x 384 in the MLP; 2 flop each per token.
    weights = 2 * 384 * 384 + 2 * 128 * 384 + 3 * 1024 * 384
    ops = [layer.backward_ops[index] for index in weight_gradient_ops(layer)]
    assert sum(op.work_flop for op in ops) == 2 * weights * 256
    # The two norms' weights are made with I.
    assert sorted(op.name for op in ops) == ["mm"] * 7
    head = graph.blocks[-1]
    ops = [head.backward_ops[index] for index in weight_gradient_ops(head)]
    assert sum(op.work_flop for op in ops) == 2 * 8192 * 384 * 256
    first = graph.blocks[0]
    assert [first.backward_ops[index].name for index in weight_gradient_ops(first)] == [
        "embedding_dense_backward"
    ]


def test_half_of_a_convolution_s_backward_is_w_and_all_of_the_first_one_s():
    # The first needs no gradient of the image, so that its backward is as much work as its forward.
    from profiles.model.loaders import resolve_model
    from profiles.model.tracing.trace import trace_graph

    spec = resolve_model("tests.executor.tiny_models:cnn")
    graph = trace_graph(spec, micro_batch=2, sequence_length=1, dtype="float32", target="cpu")
    parts = [
        part
        for ref in graph.chain
        for index, part in weight_gradient_ops(graph.kinds[ref.kind]).items()
        if graph.kinds[ref.kind].backward_ops[index].kind is OpKind.CONV
    ]
    assert parts == [1.0, 0.5, 0.5, 0.5]


class LinearModel(HandMadeModel):
    """Four blocks that are a linear layer each."""

    def at(self, micro_batch, tp=1):
        graph, one = super().at(micro_batch, tp), linear(4096, 1024, 1024)
        ops = {"forward_ops": one.forward_ops, "backward_ops": one.backward_ops}
        kinds = [replace(block, parameters=one.parameters, **ops) for block in graph.kinds]
        return replace(graph, kinds=tuple(kinds))


def test_a_split_backward_fills_a_pipeline_s_wait():
    """1f1b takes nine times a micro-batch's forward and backward for eight of them on two ranks;
    with W in the gaps between eight and nine times."""
    model, machine = LinearModel(2), cluster(1, 2)
    whole, split = (
        predict(
            plan(pp=2, num_blocks=4, num_microbatches=8, schedule=schedule),
            model,
            machine,
            stack=load_stack(),
        ).step_time_s
        for schedule in ("1f1b", "zb-h1")
    )
    for end in ("low", "value", "high"):
        assert 8 / 9 < getattr(split, end) / getattr(whole, end) < 0.95


def test_a_measured_share_goes_before_the_ops():
    block = linear(64, 16, 32)
    nothing = Measurements(source="test", date="2026-11-21")
    machine = cluster(1, 1, of=replace(device(), measurements=nothing))
    by_ops = weight_gradient_s(block, devices=(0,), cluster=machine)
    point = BlockPoint(
        kind=block.kind,
        label="",
        forward_s=1.0,
        backward_s=3.0,
        sample_count=1,
        spread=0.0,
        weight_share=0.4,
    )
    measured = with_blocks(machine, (point,))
    assert 0 < by_ops < 1e-3
    assert weight_gradient_s(block, devices=(0,), cluster=measured) == pytest.approx(1.2)


def test_a_stage_keeps_operands_from_i_to_w_whatever_is_recomputed():
    # Hidden 384, 128 for keys and values, inner 1024, 256 tokens, fp32. Read: the two norms' and
    # the attention's output and the product before the last; written: q, k, v, o, and 2 + 1.
    pytest.importorskip("transformers", reason="building this llama needs transformers")
    from profiles.model.loaders import resolve_model
    from profiles.model.tracing.traced import trace_model

    spec = resolve_model("tiny-llama-demo")
    graph = trace_model(spec, sequence_length=128, dtype="float32", target="cpu").at(2)
    layer = next(block for block in graph.kinds if block.label == "LlamaDecoderLayer")
    read = 3 * 384 + 1024
    written = 384 + 2 * 128 + 384 + 2 * 1024 + 384
    assert (layer.weight_input_bytes, layer.weight_output_bytes) == (1024 * read, 1024 * written)
    machine = cluster(1, 1, of=device())
    for kind in Recompute:
        cost = price_block(layer, recompute=kind, devices=(0,), cluster=machine)
        assert cost.weight_bytes == 1024 * (read + written)
        size = cost.input_bytes
        found = stage_bytes([cost] * 2, received=size, sent=size, splits_backward=True)
        assert found.weight_bytes == 2 * cost.weight_bytes
        # While the first of the two runs backward, the operands of the second wait.
        whole = stage_bytes([cost] * 2, received=size, sent=size)
        assert found.first_transient_bytes == whole.first_transient_bytes + cost.weight_bytes


def test_weights_of_experts_and_of_recurrences_are_made_with_the_gradients_of_inputs():
    """The executor defers products of its kinds only (executor/weight_products.py)."""
    layer = linear(64, 16, 32, bias=False)
    for name in ("_grouped_mm", "bmm", "gru_layer"):
        unlike = replace(
            layer, backward_ops=tuple(replace(op, name=name) for op in layer.backward_ops)
        )
        assert weight_gradient_ops(unlike) == {}


def test_a_block_keeps_until_w_what_its_linear_layers_read_and_no_other_product(tmp_path):
    pytest.importorskip("transformers", reason="building this mixtral needs transformers")
    from profiles.model.loaders import resolve_model
    from profiles.model.tracing.traced import trace_model
    from tests.executor.config_zoo import config_of

    path = tmp_path / "mixtral.json"
    path.write_text(json.dumps({**config_of("mixtral"), "num_hidden_layers": 2}))
    config = json.loads(path.read_text())
    graph = trace_model(resolve_model(str(path)), sequence_length=32, dtype="bfloat16").at(2)
    layer = graph.blocks[1]
    hidden, heads, groups = (
        config[key] for key in ("hidden_size", "num_attention_heads", "num_key_value_heads")
    )
    keys = hidden // heads * groups
    # Per token in bf16: what q, k and v read (once), what o reads, what the router reads; the
    # gradients of q, k, v, o and the router's scores.
    read, written = 3 * hidden, 2 * hidden + 2 * keys + config["num_local_experts"]
    assert layer.weight_input_bytes == 2 * 64 * read
    assert layer.weight_output_bytes == 2 * 64 * written

"""Mixed precision by copies: what FSDP2 on one process gives, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from executor.memory import PeakWatch
from executor.replay.data_flow import flow_of
from executor.stages import StageModule
from executor.starting_weights import StartingWeights, builder_of
from executor.working_copies import WorkingCopies
from profiles.model.loaders import resolve_model
from tests.executor.cases import make_plan

STEPS, MICRO_BATCHES = 3, 3


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[DeviceMesh]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


class Shared(nn.Module):
    """A table that embeds and is the head, a recurrence that keeps a list of its weights, a frozen
    layer, and a number."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(16, 8)
        self.recurrence = nn.GRU(8, 8, batch_first=True)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.norm = nn.LayerNorm(8)
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x, _ = self.recurrence(self.table(tokens))
        out: Tensor = self.head(self.norm(self.frozen(x)) * self.scale.to(x.dtype))
        return out


def trained(weights: list[nn.Parameter], passes: Callable[[int], None]) -> list[Tensor]:
    """The weights after some steps; `passes` runs a step's micro-batches."""
    optimizer = torch.optim.AdamW(weights, lr=1e-2)
    for step in range(STEPS):
        passes(step)
        optimizer.step()
        optimizer.zero_grad()
    return [w.full_tensor() if isinstance(w, DTensor) else w.detach() for w in weights]


def loss_of(model: nn.Module, step: int, micro_batch: int) -> Tensor:
    seed = torch.Generator().manual_seed(10 * step + micro_batch)
    tokens = torch.randint(0, 16, (2, 5), generator=seed)
    out = model(tokens)
    return nn.functional.cross_entropy(out.flatten(0, 1), tokens.roll(1, 1).flatten())


def with_fsdp(mesh: DeviceMesh) -> list[Tensor]:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model = Shared()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard(model, mesh=mesh, mp_policy=policy, ignored_params={model.scale})

    def passes(step: int) -> None:
        for m in range(MICRO_BATCHES):
            model.set_requires_gradient_sync(m == MICRO_BATCHES - 1)  # type: ignore[operator] # FSDP2's
            loss_of(model, step, m).backward()

    return trained([p for p in model.parameters() if p.requires_grad], passes)


def test_weights_after_some_steps_are_those_of_fsdp(mesh: DeviceMesh) -> None:
    model = Shared()
    weights = [p for p in model.parameters() if p.requires_grad]
    copies = WorkingCopies(model, torch.bfloat16)
    types = {name: p.dtype for name, p in model.named_parameters()}
    assert types.pop("scale") == torch.float32
    assert set(types.values()) == {torch.bfloat16}
    assert model.head.weight is model.table.weight

    def passes(step: int) -> None:
        copies.refresh()
        for m in range(MICRO_BATCHES):
            loss_of(model, step, m).backward()
            copies.keep_gradients()

    mine = trained(weights, passes)
    theirs = with_fsdp(mesh)
    assert len(mine) == len(theirs) == 8
    for a, b in zip(mine, theirs, strict=True):
        assert a.dtype == torch.float32
        assert torch.equal(a, b)


def test_gradients_do_not_wait_for_the_end_of_the_backward_once_they_are_many() -> None:
    model = nn.Sequential(nn.Linear(4, 512), nn.Linear(512, 1024), nn.Linear(1024, 2))
    first, large, small = (layer.weight for layer in model)
    copies = WorkingCopies(model, torch.bfloat16)
    model(torch.ones(1, 4, dtype=torch.bfloat16)).sum().backward()
    # 1 MiB with those of the layer behind it; what comes after that is little.
    assert model[1].weight.grad is model[2].weight.grad is None
    assert model[0].weight.grad is not None
    assert first.grad is None
    copies.keep_gradients()
    assert model[0].weight.grad is None
    for weight in (first, large, small):
        assert weight.grad is not None
        assert weight.grad.dtype == torch.float32


def test_frozen_weights_are_not_kept_beside_their_copies() -> None:
    layer = nn.Linear(4, 4).requires_grad_(False)
    copies = WorkingCopies(layer, torch.bfloat16)
    assert layer.weight.dtype == torch.bfloat16
    assert not copies.weight_of


def test_gradients_of_large_copies_add_up_over_micro_batches() -> None:
    model = nn.Linear(1024, 512, bias=False)
    weight = model.weight
    WorkingCopies(model, torch.bfloat16)
    for value in (1.0, 2**-9):  # their sum is no bf16 number
        model(torch.full((1, 1024), value, dtype=torch.bfloat16)).sum().backward()
        assert model.weight.grad is None
    torch.testing.assert_close(weight.grad, torch.full((512, 1024), 1 + 2**-9), rtol=0, atol=0)


def test_a_gradient_is_never_cast_as_a_whole_to_be_added() -> None:
    with PeakWatch(torch.device("cpu")) as watch:
        model = nn.Linear(2048, 1024, bias=False)
        WorkingCopies(model, torch.bfloat16)
        x = torch.ones(1, 2048, dtype=torch.bfloat16)
        model(x).sum().backward()
        with watch.measured():
            model(x).sum().backward()
    # Of 2 Mi elements: weight and sum in fp32, copy and gradient in bf16; and a piece of a cast.
    held = 2 * 2**20 * (4 + 4 + 2 + 2)
    assert held <= watch.peak_bytes <= held + 3 * 2**20


def test_gradients_add_up_in_the_type_of_the_weights() -> None:
    model = nn.Linear(2, 2, bias=False)
    weight = model.weight
    copies = WorkingCopies(model, torch.bfloat16)
    for value in (1.0, 2**-9):  # their sum is no bf16 number
        model.weight.grad = torch.full((2, 2), value, dtype=torch.bfloat16)
        copies.keep_gradients()
    assert model.weight.grad is None
    torch.testing.assert_close(weight.grad, torch.full((2, 2), 1 + 2**-9), rtol=0, atol=0)


def test_what_crosses_a_cut_has_the_types_that_the_next_stage_expects() -> None:
    """A single number stays fp32, and so does what is made of it alone."""
    plan = make_plan("tests.executor.weight_zoo:tempered", ("", "layers.1"), precision="bf16")
    build = builder_of(plan, resolve_model(plan.model), "bfloat16")
    flow = flow_of(build(micro_batch=2), plan.block_entries)
    built = build(micro_batch=2)
    starting = StartingWeights(built.module, torch.device("cpu"), plan.seed)
    stage = StageModule(built, flow, 0, 1)
    starting.fill(stage.model)
    stage.copies = WorkingCopies(stage.model, torch.bfloat16)
    stage.watch_entries()
    sent = stage(arg0=built.args[0], target0=built.targets)
    assert [(tuple(x.shape), x.dtype) for x in sent] == list(flow.shapes(1))
    assert {x.dtype for x in sent} == {torch.float32, torch.bfloat16}


@pytest.mark.parametrize("cuts", [(0, 3), (0, 1, 2, 3)], ids=["whole", "cut"])
def test_units_are_given_what_they_compute_in(cuts: tuple[int, ...]) -> None:
    """What a constant in fp32 has made wider is cast where a unit begins, as FSDP2 does."""
    entries = ("", "layers.1", "layers.2")
    plan = make_plan("tests.executor.weight_zoo:placed", entries, precision="bf16")
    build = builder_of(plan, resolve_model(plan.model), "bfloat16")
    flow = flow_of(build(micro_batch=2), plan.block_entries)
    wide = {"layers.0", "layers.1", "layers.2", "scores"}
    assert flow.casts == wide
    crossing: tuple[Tensor, ...] = ()
    for first, last in pairwise(cuts):
        built = build(micro_batch=2)
        starting = StartingWeights(built.module, torch.device("cpu"), plan.seed)
        stage = StageModule(built, flow, first, last)
        starting.fill(stage.model)
        stage.copies = WorkingCopies(stage.model, torch.bfloat16)
        stage.watch_entries()
        received = tuple(x.detach().requires_grad_() for x in crossing)
        made = stage(*received, arg0=built.args[0], target0=built.targets)
        crossing = made if isinstance(made, tuple) else (made,)
        if last < len(entries):
            assert [(tuple(x.shape), x.dtype) for x in crossing] == list(flow.shapes(last))
    crossing[0].sum().backward()
    stage.copies.keep_gradients()
    assert all(weight.grad is not None for weight in stage.copies.weight_of.values())

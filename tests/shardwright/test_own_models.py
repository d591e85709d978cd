"""A user's own models: their names, samples, losses, and plans of them that were edited."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import shardwright as public
from planner.axes import Axes
from profiles.errors import DocumentError, InputError, TraceError
from profiles.hardware.catalogue.catalog import get_cluster
from profiles.model.building.build import build_model
from profiles.model.loaders import resolve_model
from shardwright import api
from shardwright.cli import app
from shardwright.options.plan_options import PlanOptions
from shardwright.requests.layout_answers import why_no_layouts
from shardwright.requests.named_model import described_of, sample_of
from shardwright.requests.opened_plan import open_plan
from shardwright.requests.plan_request import default_precision, plan_request
from shardwright.requests.plan_route import executor_space, figures_of
from shardwright.requests.provenance import provenance
from simulator.values.plan_file import PlanFile, write_plan_file
from simulator.values.workload import Workload
from tests.executor.config_zoo import config_of
from tests.shardwright import mymodels
from tests.simulator.hand_made import cluster as hand_made_cluster
from tests.simulator.hand_made import device

HERE = "tests.shardwright.mymodels"
ON = "2xh100-sxm"


@pytest.fixture(scope="module")
def planned() -> PlanFile:
    work = Workload(global_batch=8, sequence_length=32)
    return api.plan(f"{HERE}:small", ON, work, pp=2, micro_batch=2, schedule="1f1b")


def test_a_plan_keeps_the_name_that_leads_to_its_model(planned: PlanFile) -> None:
    assert planned.plan is not None
    assert planned.plan.model == f"{HERE}:small"


@pytest.mark.parametrize(
    ("factory", "tokens", "counted_in", "assumed"),
    [
        ("small", 32, "tokens", "the inputs are whole numbers [batch, 32]"),
        ("images", 1, "samples", "costs are per sample"),
        ("told", 8, "tokens", ""),
        ("attribute", 4, "tokens", "mean square of the outputs"),
    ],
)
def test_what_a_sample_is(factory: str, tokens: int, counted_in: str, assumed: str) -> None:
    found = sample_of(f"{HERE}:{factory}", None)
    assert (found.sequence_length, found.counted_in) == (tokens, counted_in)
    assert assumed in " ".join(found.assumptions)


def test_a_sequence_length_that_the_inputs_contradict_is_refused() -> None:
    with pytest.raises(InputError, match=r"--seq 4096: .*:small makes its own inputs.* 32 tokens"):
        sample_of(f"{HERE}:small", 4096)
    ignored = sample_of(f"{HERE}:images", 7)
    assert (ignored.sequence_length, ignored.counted_in) == (1, "samples")
    assert "--seq 7 is ignored" in ignored.assumptions[-1]
    assert sample_of(f"{HERE}:small", 32).counted_in == "tokens"
    assert sample_of("vit-huge", None).counted_in == "samples"


def test_samples_have_their_own_costs_and_tokens_have_none() -> None:
    work = Workload(global_batch=8, sequence_length=1, counted_in="samples")
    found = api.plan(f"{HERE}:images", ON, work)
    assert found.prediction is not None
    assert found.step_time_s is not None
    assert found.usd_per_million_tokens is None
    assert found.prediction.tokens_per_s is None
    assert found.prediction.per_s.value == pytest.approx(8 / found.step_time_s)
    per_hour = 2 * api.price_for(get_cluster(ON)).value  # type: ignore[union-attr] # has a price
    expected = per_hour / 3600 * found.step_time_s / 8 * 1e6
    assert found.usd_per_million_samples == pytest.approx(expected)


def test_a_loss_of_pairs_of_samples_is_told() -> None:
    """CLIP's loss depends on the micro-batch and on dp, and plans of both did not say so."""
    work = Workload(global_batch=8, sequence_length=1, counted_in="samples")
    told = [
        any("every sample of a micro-batch" in one for one in api.plan(name, ON, work).assumptions)
        for name in ("tests.profiles.small_models:pairs", f"{HERE}:images")
    ]
    assert told == [True, False]


def test_an_error_in_the_loss_is_said_to_be_in_it() -> None:
    with pytest.raises(TraceError, match=r"the loss function fails: AttributeError.*a tuple of 1"):
        api.trace(f"{HERE}:tuple_of_targets")


@pytest.mark.parametrize("factory", ["logits_and_loss", "loss_alone"])
def test_a_loss_that_the_model_returns_is_trained(factory: str) -> None:
    """The mean of the squares of logits and loss was, or the square of the loss."""
    spec = resolve_model(f"{HERE}:{factory}")
    built = build_model(spec, micro_batch=2, sequence_length=1, device="cpu")
    output = built.call(built.module, *built.args)
    assert built.loss_fn(output, built.targets) is (
        output if factory == "loss_alone" else output[1]
    )
    assert "the only number" in " ".join(built.assumptions)


def test_a_loss_that_is_assumed_is_said() -> None:
    found = sample_of(f"{HERE}:no_loss", None)
    assert any("mean square of the outputs" in one for one in found.assumptions)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("plan", "tp"), 7, r"plan\.json: plan\.tp is 7, the plan was made with 1"),
        (("plan", "workload", "global_batch"), 16, r"plan\.workload\.global_batch is 16"),
        (("plan", "dp"), 0, r"dp must be 1 or more"),
        (("plan", "micro_batch"), 3, r"not a multiple"),
    ],
)
@pytest.mark.parametrize("decided", [True, False])
def test_an_edited_plan_is_refused(
    planned: PlanFile,
    tmp_path: Path,
    place: tuple[str, ...],
    value: int,
    message: str,
    decided: bool,
) -> None:
    path = tmp_path / "plan.json"
    write_plan_file(path, planned, provenance=provenance())
    assert open_plan(path).answer == planned
    data = json.loads(path.read_text())
    if not decided:
        del data["provenance"]["decided"]  # as earlier releases wrote it
        if place[-1] == "global_batch":
            return
        message = message.replace(", the plan was made with 1", ", but the plan has no rules")
    at = data
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    path.write_text(json.dumps(data))
    with pytest.raises(DocumentError, match=message):
        open_plan(path)


def test_a_moved_layer_is_seen(planned: PlanFile, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_plan_file(path, planned, provenance=provenance())
    data = json.loads(path.read_text())
    first, second = data["plan"]["stages"]
    kinds = [*first["recompute"], *second["recompute"]]
    cut = first["last_block"] % (len(kinds) - 1) + 1
    first["last_block"] = second["first_block"] = cut
    first["recompute"], second["recompute"] = kinds[:cut], kinds[cut:]
    path.write_text(json.dumps(data))
    with pytest.raises(DocumentError, match=r"plan\.stages was changed after the plan was made"):
        open_plan(path)


def test_the_default_precision_is_what_the_devices_train_in() -> None:
    from dataclasses import replace

    cpu = hand_made_cluster(1, 2, of=replace(device(), type="cpu"))
    assert default_precision(cpu)[0] == "fp32"
    assert "a CPU trains" in default_precision(cpu)[1][0]
    assert default_precision(get_cluster(ON)) == ("bf16", ())
    assert default_precision(get_cluster("8xv100-sxm2-16gb"))[0] == "fp16"


def test_a_model_trained_in_fp8_is_planned_in_fp8_where_framework_and_devices_have_it() -> None:
    h800, offered = get_cluster("8xh800-sxm"), ("bf16", "fp8")
    precision, assumed = default_precision(h800, "deepseek-ai/DeepSeek-V3", offered)
    assert precision == "fp8"
    assert "arXiv 2412.19437, section 3.3" in assumed[0]
    assert default_precision(h800, "deepseek-v3", ("bf16",))[0] == "bf16"
    assert default_precision(h800, "llama-3.1-70b", offered)[0] == "bf16"
    assert default_precision(get_cluster("8xa100-sxm-80gb"), "deepseek-v3", offered)[0] == "bf16"


def test_a_module_with_inputs_is_traced_and_planned() -> None:
    traced = public.trace(
        mymodels.Lm(), (mymodels.words(),), targets=mymodels.words(), loss_fn=mymodels.token_loss
    )
    assert traced.sequence_length == 32
    named = public.trace(f"{HERE}:small")
    assert traced.at(2).forward_flop == named.at(2).forward_flop
    work = Workload(global_batch=8, sequence_length=32)
    assert public.plan(traced, ON, work, tp=1, dp=2).status == "optimal"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda w: public.plan(3, ON, w),
            "expected a traced model or the name of a model, got int",
        ),
        (lambda w: public.plan("gpt2", 3, w), "a cluster is named by text"),
        (lambda w: public.plan("gpt2", ON, 3), "the third argument must be a Workload"),
        (lambda w: public.plan("gpt2", ON, w, tp="x"), "tp='x' must be a whole number"),
        (lambda w: public.plan(mymodels.Lm(), ON, w), r"shardwright.trace\(module, inputs\)"),
        (lambda w: public.trace(3), "a torch module or the name of a model"),
        (lambda w: public.trace(mymodels.Lm()), "example inputs are needed"),
        (lambda w: public.predict(3, 3, ON), "give a Plan"),
    ],
)
def test_wrong_types_get_our_errors(call, message) -> None:  # type: ignore[no-untyped-def] # calls of any kind
    with pytest.raises(InputError, match=message):
        call(Workload(global_batch=8, sequence_length=32))


def test_public_names_are_listed_and_are_no_modules() -> None:
    assert {"plan", "trace", "frameworks", "profile", "report", "compare"} <= set(dir(public))
    folder = Path(public.__file__).parent
    modules = {path.stem for path in folder.iterdir()} - {"__init__"}
    assert not modules & set(public.__all__)
    for name in public.__all__:
        assert getattr(public, name) is not None
    assert "megatron-core" in public.frameworks()


def test_the_answer_for_an_own_model_is_short() -> None:
    asked = ["plan", f"{HERE}:small", "--on", "4xh100-sxm", "--global-batch", "8"]
    done = CliRunner().invoke(app, asked, catch_exceptions=False)
    lines = done.output.splitlines()
    assert max(map(len, lines)) <= 100
    labels = [line[:8].strip() for line in lines]
    assert labels[:6] == ["Best", "Step", "Memory", "Limit", "Stages", "Cost"]
    assert labels.index("Assumed") < 12
    longer = CliRunner().invoke(app, [*asked, "--explain"], catch_exceptions=False).output
    assert len(longer.splitlines()) > len(lines)


def test_the_framework_torch_takes_the_search_that_no_framework_takes() -> None:
    """On devices that only blocks are priced on, `--stack torch` ended in "unknown device"."""

    def reason(stack: str) -> str:
        options = PlanOptions(model="gpt2", on=ON, global_batch=8, solver="dp", stack=stack)
        request = plan_request(options, profile=Path("none.json"), today="2026-11-29")
        return why_no_layouts(request)

    assert reason("") == reason("torch") == "--solver dp is a solver of chains of blocks"
    # It had no effect there, and the answer did not say so.
    with pytest.raises(InputError, match=r"--solver dp with --stack megatron-core: the solvers"):
        reason("megatron-core")


def test_the_framework_torch_is_our_executor_for_any_model(tmp_path: Path) -> None:
    """A model that is no transformer of equal layers was refused: "leave out --stack"."""
    answers: list[PlanFile] = []
    for options in ((), ("--stack", "torch")):
        path = tmp_path / f"plan{len(answers)}.json"
        asked = ["plan", f"{HERE}:images", "--on", ON, "--global-batch", "8", "-o", str(path)]
        done = CliRunner().invoke(app, [*asked, *options], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        answers.append(open_plan(path).answer)
    assert answers[0] == answers[1]


def test_equal_layers_that_are_no_blocks_are_planned_as_one() -> None:
    """Layers that the model recomputes itself are one block, which no layout describes: the search
    over layouts ended in "the model's 1 blocks are not 3 layers of one module list"."""
    work = Workload(global_batch=8, sequence_length=32)
    found = api.plan(f"{HERE}:checkpointing", ON, work)
    assert found.plan is not None
    assert (found.plan.block_entries, found.plan.degrees.pp) == (("",), 1)
    assert api.predict(found).step_time_s.value == found.step_time_s


def test_layers_that_are_split_in_part_are_priced_so() -> None:
    """Layouts split all of a layer: their prices of tp 2 were those of half of the attention, which
    each rank computes as a whole."""
    work = Workload(global_batch=8, sequence_length=32)
    found = api.plan(f"{HERE}:sloping", ON, work, tp=2)
    assert found.plan is not None
    assert {path for path, kind in found.plan.tensor_parallel if kind in ("column", "row")} == {
        "layers.*.up",
        "layers.*.down",
    }
    options = PlanOptions(model=f"{HERE}:sloping", on=ON, global_batch=8)
    request = plan_request(options, profile=Path("none.json"), today="2026-11-30")
    why = "tensor parallelism leaves layers.0.qkv.weight whole, and layouts split all of a layer"
    assert why in why_no_layouts(request)
    traced = api.trace(f"{HERE}:sloping")
    with pytest.raises(InputError, match=r"leaves layers\.0\.qkv\.weight whole"):
        figures_of(traced, 32)
    assert figures_of(traced, 32, runs_here=False).num_heads == 2


def test_layers_that_figures_do_not_count_are_planned_block_by_block(tmp_path: Path) -> None:
    """OLMo 2 norms its queries over all heads, so that tensor parallelism leaves attention whole:
    as a layout, its memory was half of what the run needs."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config_of("olmo2")))
    work = Workload(global_batch=8, sequence_length=32)
    found = api.plan(str(path), ON, work, tp=2)
    assert isinstance(found, PlanFile)
    assert found.plan is not None
    assert found.plan.degrees.tp == 2


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v2", "qwen3-30b-a3b", "gemma-2-9b"])
def test_other_frameworks_have_layouts_of_layers_that_figures_do_not_count(name: str) -> None:
    options = PlanOptions(model=name, on="2x8xh100-sxm", global_batch=64, seq=1024)
    request = plan_request(options, profile=Path("none.json"), today="2026-11-30")
    assert why_no_layouts(request) == ""
    ours = replace(request, options=replace(options, stack="torch"))
    assert "the layers of Llama, BERT and GPT-2" in why_no_layouts(ours)
    with pytest.raises(InputError, match="name another framework"):
        executor_space(Axes(), described_of(name, None).figures, name)

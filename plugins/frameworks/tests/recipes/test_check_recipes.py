"""`check` of configurations without a plan: findings, patches and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from shardwright_frameworks.reading.read_config import read_config
from shardwright_frameworks.recipes.finding import JudgedRecipe, Verdict
from shardwright_frameworks.recipes.judged_recipe import judged
from shardwright_frameworks.recipes.recipe_list import recipes_in
from shardwright_frameworks.reports.recipe_report import recipe_markdown
from shardwright_frameworks.requests.table_row import imported_row, predicted_import
from typer.testing import CliRunner

from profiles.errors import DocumentError, UnknownNameError
from shardwright.cli import app

H100 = "h100-sxm-80gb"
MEGATRON = (
    "torchrun --nproc_per_node 8 --nnodes {nodes} pretrain_gpt.py --num-layers 32 "
    "--hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --vocab-size 32000 "
    "--max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 256 --bf16 --swiglu "
    "--ffn-hidden-size 14336 --untie-embeddings-and-output-weights {more}\n"
)
REGISTRY = """
from torchtitan.models.llama3 import model_registry

def llama3_8b():
    return Trainer.Config(
        model_spec=model_registry("8B"),
        training=TrainingConfig(local_batch_size=1, seq_len=8192, global_batch_size=64),
        parallelism=ParallelismConfig(tensor_parallel_degree=2),
    )

def llama3_70b():
    return Trainer.Config(
        model_spec=model_registry("70B"),
        training=TrainingConfig(local_batch_size=2, seq_len=4096),
        parallelism=ParallelismConfig(tensor_parallel_degree=8),
    )
"""


def script(folder: Path, more: str, nodes: int = 8) -> str:
    path = folder / "train.sh"
    path.write_text(MEGATRON.format(nodes=nodes, more=more))
    return str(path)


def verdicts(recipe: JudgedRecipe) -> list[Verdict]:
    return [each.verdict for each in recipe.findings]


def test_experts_beyond_the_ranks_of_a_stage_cannot_start(tmp_path: Path) -> None:
    more = (
        "--pipeline-model-parallel-size 8 --expert-model-parallel-size 32 --num-experts 64 "
        "--moe-router-topk 2"
    )
    found = judged(script(tmp_path, more), H100, time_limit_s=0)
    assert verdicts(found)[0] is Verdict.CANNOT_START
    assert found.findings[0].patch == "--expert-model-parallel-size: 32 -> 8"
    assert found.exit_code == 2


def test_what_does_not_fit_names_the_change_that_does(tmp_path: Path) -> None:
    # 8 billion weights, gradients and states: 18 bytes each on every H100.
    again = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    found = judged(script(tmp_path, again, nodes=1), H100, time_limit_s=0)
    assert verdicts(found) == [Verdict.DOES_NOT_FIT]
    assert "on h100-sxm-80gb" in found.findings[0].text
    assert found.findings[0].patch == "--use-distributed-optimizer: left out -> given"
    assert found.exit_code == 3


def test_a_slow_layout_is_compared_with_the_proven_best(tmp_path: Path) -> None:
    more = (
        "--tensor-model-parallel-size 8 --use-distributed-optimizer --recompute-granularity full "
        "--recompute-method uniform --recompute-num-layers 1"
    )
    found = judged(script(tmp_path, more), H100, time_limit_s=60)
    assert verdicts(found) == [Verdict.SLOWER]
    assert "slower than the proven best" in found.findings[0].text
    assert found.findings[0].patch.startswith("--recompute-granularity: full -> ")
    assert found.exit_code == 4
    assert judged(script(tmp_path, more), H100, time_limit_s=0).exit_code == 0


def test_keys_without_effect_are_found(tmp_path: Path) -> None:
    more = "--use-distributed-optimizer --data-parallel-sharding-strategy optim_grads_params"
    found = judged(script(tmp_path, more), H100, time_limit_s=0)
    assert verdicts(found) == [Verdict.NO_EFFECT]
    assert found.findings[0].patch == "remove --data-parallel-sharding-strategy"


def test_a_registry_is_read_function_by_function(tmp_path: Path) -> None:
    path = tmp_path / "config_registry.py"
    path.write_text(REGISTRY)
    assert recipes_in(str(path)) == (f"{path}:llama3_8b", f"{path}:llama3_70b")
    assert recipes_in(str(tmp_path)) == (f"{path}:llama3_8b", f"{path}:llama3_70b")
    run = read_config(f"{path}:llama3_70b")
    assert (run.tp, run.micro_batch, run.seq_len, run.model.num_layers) == (8, 2, 4096, 80)
    with pytest.raises(UnknownNameError, match=r"'huge' \(config_registry.py\). Known: llama3_70b"):
        read_config(f"{path}:huge")


def test_nothing_of_a_configuration_is_run(tmp_path: Path) -> None:
    path = tmp_path / "config_registry.py"
    trap = tmp_path / "ran"
    path.write_text(f"open({str(trap)!r}, 'w').close()\n" + REGISTRY)
    for recipe in recipes_in(str(path)):
        judged(recipe, H100, time_limit_s=0)
    assert not trap.exists()


def test_what_cannot_be_judged_says_why_and_is_no_finding(tmp_path: Path) -> None:
    found = judged(script(tmp_path, "--use-distributed-optimizer"), "", time_limit_s=0)
    assert verdicts(found) == [Verdict.NOT_JUDGED]
    assert "names no device" in found.findings[0].text
    assert found.exit_code == 0


def test_markdown_holds_text_of_files_in_its_cells(tmp_path: Path) -> None:
    path = tmp_path / "a|b`<img>.sh"
    path.write_text(MEGATRON.format(nodes=1, more=""))
    page = recipe_markdown([judged(str(path), H100, time_limit_s=0)])
    row = next(line for line in page.splitlines() if "img" in line)
    assert "<img" not in row
    assert row.replace("\\|", "").count("|") == 5
    assert "does not fit" in row


def test_the_command_exits_with_the_gravest_code(tmp_path: Path) -> None:
    (tmp_path / "notes.yaml").write_text("color: blue\n")
    script(tmp_path, "--tensor-model-parallel-size 8 --use-distributed-optimizer", nodes=1)
    done = CliRunner().invoke(
        app, ["check", str(tmp_path), "--on", H100, "--time-limit", "0", "--json"]
    )
    assert done.exit_code == 0, done.output
    (recipe,) = json.loads(done.stdout)["recipes"]
    assert recipe["exit_code"] == 0
    other = str(tmp_path / "notes.yaml")
    assert isinstance(CliRunner().invoke(app, ["check", other]).exception, DocumentError)
    assert CliRunner().invoke(app, ["check", other, "--skip-unknown"]).exit_code == 0


def test_adapters_may_not_fit_but_are_no_failure(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(
        "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-235B-A22B --tuner_type lora "
        "--lora_rank 8 --expert_model_parallel_size 8 --micro_batch_size 8 "
        "--global_batch_size 64 --max_length 8192\n"
    )
    found = judged(str(path), H100, time_limit_s=0)
    assert Verdict.MAY_NOT_FIT in verdicts(found)
    assert found.exit_code == 0


BRIDGE = """from megatron.bridge.recipes.common import _pretrain_common

def llama_70b_{kind}_64gpu_config() -> ConfigContainer:
    cfg = ConfigContainer(ddp=DistributedDataParallelConfig(use_megatron_fsdp=True))
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-70B").to_megatron_provider()
    cfg.model.tensor_model_parallel_size = 1
    cfg.model.pipeline_model_parallel_size = 1
    cfg.model.seq_length = 8192
    cfg.train.global_batch_size = 256
    cfg.train.micro_batch_size = 1
    cfg.ddp.data_parallel_sharding_strategy = "optim_grads_params"
    cfg.mixed_precision = MixedPrecisionConfig(bf16=True)
    {more}
    return cfg
"""


def bridge(folder: Path, more: str = "", kind: str = "pretrain") -> str:
    path = folder / "recipe.py"
    path.write_text(BRIDGE.format(kind=kind, more=more))
    return str(path)


def test_activations_in_host_memory_are_read_from_a_recipe(tmp_path: Path) -> None:
    plain = judged(bridge(tmp_path), "b200", time_limit_s=0)
    assert verdicts(plain)[0] is Verdict.DOES_NOT_FIT
    more = "cfg.model.cpu_offloading = True\n    cfg.model.cpu_offloading_num_layers = 40"
    assert read_config(bridge(tmp_path, more)).activation_offload == 0.5
    assert not judged(bridge(tmp_path, more), "b200", time_limit_s=0).exit_code


def test_memory_that_an_unread_key_saves_makes_no_sure_finding(tmp_path: Path) -> None:
    more = "cfg.model.fine_grained_activation_offloading = True"
    found = judged(bridge(tmp_path, more), "b200", time_limit_s=0)
    assert verdicts(found)[0] is Verdict.MAY_NOT_FIT
    assert "what model.fine_grained_activation_offloading saves is not in it" in str(found)
    assert found.exit_code == 0


def test_the_type_of_gradients_is_that_of_the_precision(tmp_path: Path) -> None:
    path = bridge(tmp_path, "cfg.ddp.grad_reduce_in_fp32 = False")
    assert read_config(path).gradient_reduction == "bf16"
    path = bridge(
        tmp_path,
        "cfg.ddp.grad_reduce_in_fp32 = False\n    cfg.mixed_precision.grad_reduce_in_fp32 = True",
    )
    assert read_config(path).gradient_reduction == "fp32"


def test_adapters_of_a_recipe_are_no_full_training(tmp_path: Path) -> None:
    more = 'cfg.peft = default_peft_config("lora")'
    assert read_config(bridge(tmp_path, more)).model.lora_rank == 32
    assert read_config(bridge(tmp_path, f"{more}\n    cfg.peft.dim = 16")).model.lora_rank == 16
    assert read_config(bridge(tmp_path, f"{more}\n    cfg.peft = None")).model.lora_rank is None


def test_a_small_flavor_is_not_the_family_s_large_model(tmp_path: Path) -> None:
    path = tmp_path / "config_registry.py"
    path.write_text(
        "from . import model_registry\n\n"
        "def deepseek_v3_debugmodel():\n"
        '    spec = model_registry("debugmodel")\n'
        "    return Trainer.Config(model_spec=spec, training=TrainingConfig(seq_len=2048))\n"
    )
    model = read_config(f"{path}:deepseek_v3_debugmodel").model
    assert (model.flavor, model.num_layers) == ("debugmodel", None)


def test_degrees_for_another_number_of_devices_cannot_start(tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    path.write_text(
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\n'
        "seq_len = 8192\n[parallelism]\ndata_parallel_shard_degree = 4\n"
        "data_parallel_replicate_degree = 1\n[activation_checkpoint]\nmode = 'full'\n"
    )
    found = judged(str(path), "1x8xh100-sxm-80gb", time_limit_s=0)
    assert verdicts(found)[0] is Verdict.CANNOT_START
    assert "the degrees are for 4 devices" in found.findings[0].text
    assert not judged(str(path), "1x4xh100-sxm-80gb", time_limit_s=0).exit_code


def test_no_figures_of_a_family_s_large_model_are_priced_for_a_small_flavor(tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    path.write_text(
        '[model]\nname = "deepseek_v3"\nflavor = "debugmodel"\n[training]\nlocal_batch_size = 1\n'
        "seq_len = 2048\n[parallelism]\nexpert_parallel_degree = 2\n[checkpoint]\n"
    )
    found = judged(str(path), "1x8xh100-sxm-80gb", time_limit_s=0)
    assert verdicts(found) == [Verdict.NOT_JUDGED]
    assert "'debugmodel of deepseek_v3' is not a known model" in found.findings[0].text


def test_states_in_fp32_and_sharding_that_is_off_are_no_remark(tmp_path: Path) -> None:
    more = (
        "cfg.ddp.use_megatron_fsdp = False\n"
        "    cfg.ddp.data_parallel_sharding_strategy = 'no_shard'\n"
        "    cfg.optimizer.exp_avg_dtype = torch.float32"
    )
    assert read_config(bridge(tmp_path, more)).unused == ()


def test_a_megatron_script_of_swift_is_priced_as_megatron(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(
        "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen2.5-7B-Instruct --tuner_type full "
        "--tensor_model_parallel_size 2 --micro_batch_size 1 --global_batch_size 16 "
        "--max_length 2048 --recompute_granularity full\n"
    )
    found = judged(str(path), H100, time_limit_s=0)
    assert found.summary.startswith("8 h100-sxm-80gb, megatron-core, step")


def test_weights_in_16_bits_without_sharding_make_no_sure_finding(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(
        "NPROC_PER_NODE=1 swift sft --model Qwen/Qwen2.5-7B-Instruct --tuner_type full "
        "--torch_dtype bfloat16 --per_device_train_batch_size 1 --gradient_accumulation_steps 16 "
        "--max_length 2048\n"
    )
    assert read_config(path).answer("zero_stage") == 0
    found = judged(str(path), "a100-80gb", time_limit_s=0)
    assert verdicts(found)[0] is Verdict.MAY_NOT_FIT
    assert "loaded in 16 bits take half" in found.findings[0].text


def test_a_patch_for_memory_takes_memory_away(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(
        "NPROC_PER_NODE=2 megatron sft --model Qwen/Qwen2.5-7B-Instruct --tuner_type full "
        "--tensor_model_parallel_size 2 --micro_batch_size 16 --global_batch_size 16 "
        "--sequence_parallel true --recompute_granularity full --recompute_method uniform "
        "--recompute_num_layers 1 --max_length 2048\n"
    )
    found = judged(str(path), "a100-80gb", time_limit_s=0)
    assert found.findings[0].patch == "--micro_batch_size: 16 -> 8"


def test_a_layout_outside_of_the_searched_axes_is_not_called_slow(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "base_model: meta-llama/Llama-3.1-8B\ndatasets:\n- path: a\nsequence_len: 2048\n"
        "dp_shard_size: 4\ntensor_parallel_size: 2\nfsdp_version: 2\nmicro_batch_size: 1\n"
        "gradient_checkpointing: true\nbf16: true\n"
    )
    found = judged(str(path), H100, time_limit_s=20)
    assert verdicts(found) == [Verdict.NOT_JUDGED]
    assert "searched over dp, and this one has tp 2" in found.findings[0].text


def test_a_recipe_s_own_figures_do_not_contradict_the_published_model(tmp_path: Path) -> None:
    run = read_config(bridge(tmp_path, "cfg.model.vocab_size = 1024"))
    assert (run.model.vocab_size, run.model.num_layers) == (1024, 80)
    assert run.contradictions == ()


def test_layers_with_a_state_are_not_priced_as_attention(tmp_path: Path) -> None:
    pattern = 'cfg.model.hybrid_layer_pattern = "MEMEM*EM"'
    path = bridge(tmp_path, pattern)
    text = Path(path).read_text().replace("AutoBridge.from_hf_pretrained", "Provider")
    Path(path).write_text(text)
    found = judged(path, "b200", time_limit_s=0)
    assert verdicts(found) == [Verdict.NOT_READ, Verdict.NOT_JUDGED]
    assert "(model.hybrid_layer_pattern) are not read" in found.findings[1].text
    assert found.summary == ""


def test_a_shipped_model_is_priced_with_its_own_layers(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "base_model: Qwen/Qwen3.5-27B\ndatasets:\n- path: a\nsequence_len: 2048\n"
        "dp_shard_size: 8\nfsdp_version: 2\nmicro_batch_size: 1\nbf16: true\n"
    )
    made = predicted_import(imported_row(read_config(path), path, H100))
    assert made.run is not None
    assert made.run.model.state is not None


def test_helpers_of_a_registry_are_no_recipes(tmp_path: Path) -> None:
    path = tmp_path / "config_registry.py"
    path.write_text(REGISTRY.replace("def llama3_8b", "def _llama3_8b"))
    assert recipes_in(str(path)) == (f"{path}:llama3_70b",)

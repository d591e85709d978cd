"""Configurations in the forms of public recipes: verl, ms-swift, Primus, LLaMA-Factory, axolotl."""

from __future__ import annotations

from pathlib import Path

import pytest
from shardwright_frameworks.imported_run import ImportedRun, Value

from plugins.frameworks.tests.configs.written_config import read

VERL = """PROMPT=$((1024 * 2))
TP=${{TP:-4}}
python3 -m verl.trainer.main_ppo --config-name='ppo_megatron_trainer' \\
    data.max_prompt_length=$PROMPT data.max_response_length=6144 data.train_batch_size=512 \\
    actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B-Base actor_rollout_ref.rollout.n=16 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=128 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 {more} \\
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=$TP \\
    actor_rollout_ref.actor.megatron.expert_model_parallel_size=8 \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \\
    actor_rollout_ref.ref.megatron.tensor_model_parallel_size=1 \\
    trainer.n_gpus_per_node=8 trainer.nnodes=4
"""


def default(run: ImportedRun, key: str) -> Value:
    return run.defaults[key].value


def test_verl_trains_the_actor_with_several_answers_per_prompt(tmp_path: Path) -> None:
    run = read(tmp_path, "run.sh", VERL.format(more=""))
    assert (run.framework, run.tp, run.ep, run.devices, run.dp) == ("verl", 4, 8, 32, 8)
    assert (run.global_batch, run.micro_batch, run.seq_len) == (128 * 16, 2, 8192)
    assert run.model.num_experts == 128
    assert run.contradictions == ()
    # Megatron-Core's distributed optimizer and sequence parallelism are on in verl.
    assert (default(run, "zero_stage"), default(run, "sequence_parallel")) == (1, True)
    assert default(run, "precision") == "bf16"


def test_verl_with_dynamic_batches_has_no_micro_batch(tmp_path: Path) -> None:
    more = "actor_rollout_ref.actor.use_dynamic_bsz=True"
    run = read(tmp_path, "run.sh", VERL.format(more=more))
    assert run.micro_batch is None
    assert [each.option for each in run.unresolved] == [more.partition("=")[0]]
    (unused,) = run.unused
    assert unused.option == "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"


@pytest.mark.parametrize(("method", "layers"), [("uniform", None), ("block", 3)])
def test_verl_recomputes_layers_of_blocks_only(
    tmp_path: Path, method: str, layers: int | None
) -> None:
    key = "+actor_rollout_ref.actor.megatron.override_transformer_config.recompute_"
    more = f"{key}granularity=full {key}method={method} {key}num_layers=3"
    run = read(tmp_path, "run.sh", VERL.format(more=more))
    assert (run.recompute, run.recompute_layers) == ("full", layers)


def test_verl_shards_with_fsdp_and_counts_ulysses_as_context(tmp_path: Path) -> None:
    text = (
        "torchrun --nnodes=2 --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer "
        "data.train_batch_size=96 data.micro_batch_size_per_gpu=4 data.max_length=2048 "
        "model.partial_pretrain=Qwen/Qwen3-8B ulysses_sequence_parallel_size=2\n"
    )
    run = read(tmp_path, "run.sh", text)
    assert (run.cp, run.dp, run.global_batch, run.micro_batch) == (2, 8, 96, 4)
    assert (default(run, "zero_stage"), default(run, "recompute")) == (3, "full")


def test_ms_swift_has_defaults_of_its_own_over_megatron_core_s(tmp_path: Path) -> None:
    text = (
        "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-30B-A3B-Instruct-2507 "
        "--model_name my-robot --tensor_model_parallel_size 4 --max_length 4096\n"
    )
    run = read(tmp_path, "run.sh", text)
    assert run.contradictions == ()
    assert run.model.num_layers == 48
    assert (default(run, "zero_stage"), default(run, "precision")) == (1, "bf16")
    assert (default(run, "micro_batch"), default(run, "global_batch")) == (1, 16)


PRIMUS = """modules:
  pre_trainer:
    framework: {framework}
    model: {model}.yaml
    overrides:
"""


def test_primus_over_megatron(tmp_path: Path) -> None:
    text = PRIMUS.format(framework="megatron", model="qwen3_235B_A22B")
    text += "      tensor_model_parallel_size: 1\n      expert_model_parallel_size: 8\n"
    run = read(tmp_path, "a.yaml", text)
    assert (run.framework, run.ep, run.model.num_layers) == ("primus", 8, 94)
    assert (default(run, "precision"), default(run, "zero_stage")) == ("bf16", 1)


def test_primus_over_torchtitan(tmp_path: Path) -> None:
    text = PRIMUS.format(framework="torchtitan", model="deepseek_v3_671b")
    text += "      training: {local_batch_size: 16, seq_len: 4096}\n"
    text += "      parallelism: {expert_parallel_degree: 8, data_parallel_shard_degree: -1}\n"
    run = read(tmp_path, "a.yaml", text)
    assert (run.framework, run.ep, run.micro_batch, run.seq_len) == ("torchtitan", 8, 16, 4096)
    assert (run.zero_stage, run.model.num_experts) == (3, 256)


def test_primus_over_maxtext(tmp_path: Path) -> None:
    text = PRIMUS.format(framework="maxtext", model="llama3_70B")
    text += "      ici_fsdp_parallelism: 8\n      dcn_fsdp_parallelism: 2\n"
    text += "      per_device_batch_size: 7\n      max_target_length: 8192\n"
    run = read(tmp_path, "a.yaml", text)
    assert (run.framework, run.micro_batch, run.seq_len) == ("maxtext", 7, 8192)
    assert (run.zero_stage, run.model.num_layers) == (3, 80)


def test_a_recipe_that_primus_starts_answers_for_no_default(tmp_path: Path) -> None:
    text = PRIMUS.format(framework="megatron_bridge", model="qwen3_32b")
    text += "      flavor: qwen3_32b_pretrain_config\n      tensor_model_parallel_size: 2\n"
    run = read(tmp_path, "a.yaml", text)
    assert (run.framework, run.tp) == ("megatron-bridge", 2)
    assert "pp" not in run.defaults
    assert [each.option for each in run.unresolved] == ["modules.pre_trainer.overrides.flavor"]


def test_a_framework_that_primus_starts_and_nobody_reads(tmp_path: Path) -> None:
    text = PRIMUS.format(framework="hummingbirdxt", model="wan") + "      steps: 1\n"
    run = read(tmp_path, "a.yaml", text)
    assert "runs of 'hummingbirdxt' are not read" in run.unresolved[0].why


def test_llama_factory_s_second_form_shards_and_recomputes_by_default(tmp_path: Path) -> None:
    text = (
        "model: Qwen/Qwen3.5-35B-A3B\nmodel_class: llm\ntrain_dataset: d.yaml\ncutoff_len: 256\n"
        "dist_config:\n  name: fsdp2\n  ep_size: 16\nglobal_batch_size: 64\nmicro_batch_size: 1\n"
    )
    run = read(tmp_path, "a.yaml", text)
    assert (run.framework, run.zero_stage, run.ep) == ("llama-factory", 3, 16)
    assert run.global_batch == 64
    assert run.model.num_experts == 256  # Qwen3.5's configuration is shipped
    assert (default(run, "precision"), default(run, "recompute")) == ("bf16", "full")


def test_axolotl_s_automatic_precision_is_bf16(tmp_path: Path) -> None:
    text = "base_model: Qwen/Qwen3-8B\ndatasets: []\nmicro_batch_size: 1\nbf16: auto\n"
    assert read(tmp_path, "a.yaml", text).precision == "bf16"


AUTOMODEL = """step_scheduler: {{global_batch_size: 64, local_batch_size: 4}}
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
  pretrained_model_name_or_path: Qwen/Qwen3-30B-A3B
distributed:
  strategy: fsdp2
  tp_size: 2
  pp_size: {pp}
  ep_size: 8
  activation_checkpointing: true
  pipeline: {{pp_schedule: interleaved1f1b, pp_microbatch_size: 1}}
dataset: {{seq_len: 4096}}
packed_sequence: {{packed_sequence_size: {packed}}}
optimizer: {{_target_: torch.optim.AdamW}}
"""


@pytest.mark.parametrize(("pp", "micro", "stage"), [(1, 4, 3), (4, 1, 2)])
def test_automodel_cuts_its_batch_with_a_pipeline(
    tmp_path: Path, pp: int, micro: int, stage: int
) -> None:
    run = read(tmp_path, "a.yaml", AUTOMODEL.format(pp=pp, packed=0))
    assert (run.framework, run.tp, run.pp, run.ep) == ("automodel", 2, pp, 8)
    assert (run.micro_batch, run.global_batch, run.seq_len) == (micro, 64, 4096)
    assert (run.recompute, run.optimizer, run.model.num_experts) == ("full", "adamw", 128)
    assert (run.zero_stage or default(run, "zero_stage")) == stage


def test_automodel_packs_sequences_to_their_own_length(tmp_path: Path) -> None:
    run = read(tmp_path, "a.yaml", AUTOMODEL.format(pp=1, packed=1024))
    assert (run.seq_len, run.contradictions) == (1024, ())


def test_the_second_form_of_llama_factory_names_its_optimizer(tmp_path: Path) -> None:
    text = "model: m\nmodel_class: llm\ncutoff_len: 2048\noptim_config:\n  name: muon\n"
    assert read(tmp_path, "a.yaml", text).optimizer == "muon"


def test_verl_sft_by_automodel_of_an_unknown_program(tmp_path: Path) -> None:
    text = (
        "$COMMAND data.train_files=a data.train_batch_size=64 model.path=Qwen/Qwen3-8B "
        "engine=automodel engine.tp_size=2 engine.ep_size=1 optim.optimizer=FusedAdam "
        "data.max_length=1024 trainer.nnodes=1 data.micro_batch_size_per_gpu=2 "
        "trainer.total_epochs=1 optim.lr=1 data.truncation=left\n"
    )
    run = read(tmp_path, "run.sh", text)
    assert (run.framework, run.tp, run.ep, run.optimizer) == ("verl", 2, 1, "fusedadam")
    assert (run.global_batch, run.seq_len, default(run, "recompute")) == (64, 1024, "none")


NEMO_RL = """policy:
  model_name: Qwen/Qwen3-30B-A3B
  train_global_batch_size: 512
  train_micro_batch_size: 4
  max_total_sequence_length: 4096
  optimizer: {name: torch.optim.AdamW}
  dtensor_cfg: {enabled: true, tensor_parallel_size: 2}
  megatron_cfg: {enabled: false, tensor_parallel_size: 1, tensor_model_parallel_size: 8}
  generation: {colocated: {enabled: true, resources: {num_nodes: null}}}
cluster: {gpus_per_node: 8, num_nodes: 4}
"""


def test_nemo_rl_reads_the_enabled_engine_only(tmp_path: Path) -> None:
    run = read(tmp_path, "base.yaml", NEMO_RL)
    assert (run.framework, run.tp, run.devices, run.dp) == ("nemo-rl", 2, 32, 16)
    assert (run.optimizer, default(run, "zero_stage")) == ("adamw", 3)


def test_nemo_rl_inherits_and_leaves_generators_out(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("")  # files above the folder: of a repository only
    (tmp_path / "base.yaml").write_text(NEMO_RL)
    (tmp_path / "recipes").mkdir()
    run = read(
        tmp_path / "recipes",
        "child.yaml",
        "defaults: ../base.yaml\npolicy:\n  optimizer: null\n  dtensor_cfg: {enabled: false}\n"
        "  megatron_cfg: {enabled: true, expert_model_parallel_size: 8}\n"
        "  generation: {colocated: {enabled: false, resources: {num_nodes: 2}}}\n",
    )
    assert (run.tp, run.ep, run.nodes, run.devices, run.dp) == (8, 8, 2, 16, 2)
    assert (run.optimizer, default(run, "zero_stage")) == (None, 1)
    assert len(run.files) == 2


def test_nemo_rl_without_its_parent_has_no_defaults(tmp_path: Path) -> None:
    run = read(tmp_path, "a.yaml", "defaults: ../b.yaml\npolicy:\n  model_name: m\n")
    assert [each.option for each in run.unresolved] == ["defaults"]
    assert "tp" not in run.defaults


def test_expr_of_whole_numbers_is_computed(tmp_path: Path) -> None:
    text = (
        "n=2\nNPROC_PER_NODE=$n swift sft --model Qwen/Qwen2.5-7B-Instruct --train_type full "
        "--per_device_train_batch_size 1 --gradient_accumulation_steps $(expr 16 / $n)\n"
    )
    run = read(tmp_path, "run.sh", text)
    assert (run.gradient_accumulation, run.global_batch, run.unresolved) == (8, 16, ())

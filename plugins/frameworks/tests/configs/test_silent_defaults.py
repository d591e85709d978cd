"""Keys whose absence or default once gave a wrong value without a word, each in a short file."""

from __future__ import annotations

from pathlib import Path

import pytest
from shardwright_frameworks.imported_run import ImportedRun
from shardwright_frameworks.reading.read_config import read_config
from shardwright_frameworks.requests.table_row import row_of_import

AXOLOTL = "base_model: meta-llama/Llama-3.2-3B\ndatasets:\n- path: a\nsequence_len: 4096\n"
FACTORY = (
    "model_name_or_path: Qwen/Qwen2-1.5B-Instruct\nstage: sft\ncutoff_len: 2048\n"
    "per_device_train_batch_size: 1\nbf16: true\noutput_dir: out\nfinetuning_type: {kind}\n"
)
NANOTRON = (
    "general:\n  run: a\ntokens:\n  micro_batch_size: 1\n  sequence_length: 512\n"
    "parallelism:\n  dp: 2\n  tp: 1\n  pp: 1\nmodel:\n  model_config:\n"
    "    hidden_size: 256\n    num_hidden_layers: 4\n    sliding_window_size: 20\n"
    "    moe_config:\n      num_experts: 8\n      top_k: 1\n      enable_shared_expert: true\n"
)


def read(folder: Path, text: str) -> ImportedRun:
    (folder / "run.yaml").write_text(text)
    return read_config(folder / "run.yaml")


@pytest.mark.parametrize("key", ["activation_checkpointing", "fsdp_activation_checkpointing"])
def test_axolotl_recomputes_by_its_fsdp_section(tmp_path: Path, key: str) -> None:
    text = AXOLOTL + f"fsdp_version: 2\nfsdp_config:\n  {key}: "
    assert read(tmp_path, text + "true\n").recompute == "full"
    assert read(tmp_path, text + "false\n").recompute is None


def test_axolotl_keeps_activations_in_host_memory(tmp_path: Path) -> None:
    assert read(tmp_path, AXOLOTL + "activation_offloading: true\n").activation_offload == 1.0
    assert read(tmp_path, AXOLOTL).activation_offload is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (AXOLOTL + "load_in_4bit: true\nload_in_8bit: false\n", "nf4"),
        (AXOLOTL + "load_in_8bit: true\n", "int8"),
        (AXOLOTL + "load_in_4bit: false\n", None),
        (FACTORY.format(kind="lora") + "quantization_bit: 4\nquantization_method: bnb\n", "nf4"),
        (FACTORY.format(kind="lora") + "quantization_bit: 8\n", "int8"),
    ],
)
def test_frozen_weights_have_few_bits(tmp_path: Path, text: str, kind: str | None) -> None:
    run = read(tmp_path, text)
    assert run.base_precision == kind
    assert row_of_import(run).base_precision == (kind or "")
    assert not [each for each in run.unused if "bit" in each.option]


def test_llama_factory_s_own_defaults(tmp_path: Path) -> None:
    """Layers are recomputed unless it is switched off, and adapters have rank 8."""
    run = read(tmp_path, FACTORY.format(kind="full"))
    assert (run.answer("recompute"), run.model.lora_rank, run.precision) == ("full", None, "bf16")
    assert read(tmp_path, FACTORY.format(kind="lora")).model.lora_rank == 8
    ranked = read(tmp_path, FACTORY.format(kind="lora") + "lora_rank: 16\n")
    assert ranked.model.lora_rank == 16
    off = read(tmp_path, FACTORY.format(kind="full") + "disable_gradient_checkpointing: true\n")
    assert off.recompute == "none"
    assert read(tmp_path, FACTORY.format(kind="full") + "fp8: true\n").precision == "fp8"


def test_llama_factory_s_megatron_adapter_has_its_own_recomputation(tmp_path: Path) -> None:
    keys = "tensor_model_parallel_size: 2\npipeline_model_parallel_size: 2\n"
    run = read(tmp_path, FACTORY.format(kind="full") + keys)
    assert (run.tp, run.pp, run.answer("recompute")) == (2, 2, "none")


def test_nanotron_s_window_and_shared_expert(tmp_path: Path) -> None:
    run = read(tmp_path, NANOTRON + "optimizer:\n  accumulate_grad_in_fp32: true\n")
    model = run.model
    assert run.gradient_reduction == "fp32"
    assert (model.sliding_window, model.num_shared_experts, model.num_experts) == (20, 1, 8)


MAXTEXT_BASE = (
    "model_name: default\nbase_emb_dim: 2048\nbase_num_decoder_layers: 16\nbase_mlp_dim: 7168\n"
    "base_num_query_heads: 16\nbase_num_kv_heads: 16\nnum_experts: 1\nvocab_size: 32000\n"
    "per_device_batch_size: 12.0\nmax_target_length: 2048\n"
)
MAXTEXT_MODEL = "base_emb_dim: 512\nbase_num_decoder_layers: 4\nnum_experts: 8\nsteps: 3\n"


@pytest.fixture
def maxtext(tmp_path: Path) -> Path:
    """A tree with the base file and the model's file of MaxText."""
    (tmp_path / "configs" / "models").mkdir(parents=True)
    (tmp_path / "configs" / "base.yml").write_text(MAXTEXT_BASE)
    (tmp_path / "configs" / "models" / "small-moe.yml").write_text(MAXTEXT_MODEL)
    return tmp_path / "train.sh"


def maxtext_run(script: Path, more: str) -> ImportedRun:
    script.write_text(f"python3 -m maxtext.train configs/base.yml ici_fsdp_parallelism=8 {more}\n")
    return read_config(script)


def test_a_named_model_of_maxtext_replaces_the_base_file_s_figures(maxtext: Path) -> None:
    model = maxtext_run(maxtext, "model_name=mixtral-8x7b").model
    assert (model.num_layers, model.hidden_size, model.num_experts) == (32, 4096, 8)
    model = maxtext_run(maxtext, "model_name=small-moe").model
    assert (model.num_layers, model.hidden_size, model.num_experts) == (4, 512, 8)
    assert maxtext_run(maxtext, "model_name=nobody-knows").model.num_layers is None
    assert maxtext_run(maxtext, "").model.num_layers == 16
    changed = "model_name=mixtral-8x7b override_model_config=true base_num_decoder_layers=2"
    assert maxtext_run(maxtext, changed).model.num_layers == 2


def test_the_student_of_maxtext_s_distillation_is_read(maxtext: Path) -> None:
    text = (
        "base_config: base.yml\nstudent_overrides:\n  model_name: small-moe\n"
        "  override_model_config: true\n  base_num_query_heads: 8\n"
        "teacher_overrides: {model_name: mixtral-8x7b}\ndistill_alpha: 0.5\n"
        "ici_fsdp_parallelism: -1\nmax_target_length: 512\n"
    )
    (maxtext.parent / "configs" / "distill.yml").write_text(text)
    run = read_config(maxtext.parent / "configs" / "distill.yml")
    assert (run.model.num_layers, run.model.hidden_size, run.model.num_heads) == (4, 512, 8)
    assert (run.model.name, run.model.num_experts, run.seq_len) == ("small-moe", 8, 512)
    assert [each.option for each in run.unresolved] == ["distill_alpha"]


def test_a_missing_file_of_maxtext_is_named(maxtext: Path) -> None:
    maxtext.write_text("python3 -m maxtext.train models/gpu/none.yml ici_fsdp_parallelism=8\n")
    run = read_config(maxtext)
    assert [each.option for each in run.unresolved] == ["config"]
    assert "tp" not in run.defaults


def test_keys_that_save_memory_are_named(tmp_path: Path) -> None:
    plugin = "plugins:\n- axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin\n"
    for text in (plugin, "liger_fused_linear_cross_entropy: true\n", "cut_cross_entropy: true\n"):
        unused = read(tmp_path, AXOLOTL + text).unused
        assert [each.option for each in unused] == [text.partition(":")[0]]
    galore = FACTORY.format(kind="full") + "use_galore: true\npure_bf16: true\n"
    assert [each.option for each in read(tmp_path, galore).unused] == ["use_galore"]
    only = galore.replace("\nbf16: true", "")
    assert read(tmp_path, only).precision == "bf16"


def test_axolotl_s_fsdp_section_replaces_gradient_checkpointing(tmp_path: Path) -> None:
    text = (
        AXOLOTL + "gradient_checkpointing: false\nfsdp_config:\n  activation_checkpointing: true\n"
    )
    run = read(tmp_path, text)
    assert (run.recompute, run.contradictions) == ("full", ())


@pytest.mark.parametrize(
    "command",
    [
        "python3 -m verl.trainer.main_ppo --config-path=conf --config-name none "
        "actor_rollout_ref.model.path=Qwen/Qwen3-8B trainer.n_gpus_per_node=8\n",
        "python megatron_gpt_pretraining.py --config-path=conf --config-name=none "
        "trainer.devices=8 model.global_batch_size=32\n",
    ],
)
def test_a_missing_configuration_of_hydra_is_named(tmp_path: Path, command: str) -> None:
    (tmp_path / "run.sh").write_text(command)
    run = read_config(tmp_path / "run.sh")
    assert "--config-name" in [each.option for each in run.unresolved]
    assert "tp" not in run.defaults


def test_a_missing_base_file_is_named(tmp_path: Path) -> None:
    text = "base_config: {}.yml\nper_device_batch_size: 1\nmax_target_length: 2048\nsteps: 1\n"
    assert "tp" in read(tmp_path, text.format("base")).defaults
    run = read(tmp_path, text.format("own"))
    assert [each.option for each in run.unresolved] == ["base_config"]
    assert "tp" not in run.defaults


def test_a_missing_module_of_primus_is_named(tmp_path: Path) -> None:
    text = (
        "modules:\n  pre_trainer:\n    framework: megatron\n    config: {}.yaml\n"
        "    model: llama3_8B.yaml\n    overrides:\n      micro_batch_size: 2\n"
    )
    assert "tp" in read(tmp_path, text.format("pre_trainer")).defaults
    run = read(tmp_path, text.format("own"))
    assert [each.option for each in run.unresolved] == ["modules.pre_trainer.config"]
    assert "tp" not in run.defaults


def test_deepspeed_starts_a_rank_for_each_device(tmp_path: Path) -> None:
    words = "swift/cli/sft.py --model Qwen/Qwen3-8B --tuner_type lora --lora_rank 8"
    (tmp_path / "run.sh").write_text(f"deepspeed --hostfile=hosts {words}\n")
    assert read_config(tmp_path / "run.sh").devices is None
    (tmp_path / "run.sh").write_text(f"deepspeed --num_gpus 4 {words}\n")
    assert read_config(tmp_path / "run.sh").devices == 4


def test_deepspeed_cuts_sequences_by_its_file(tmp_path: Path) -> None:
    text = (
        "train_micro_batch_size_per_gpu: 2\ngradient_accumulation_steps: 1\n"
        "zero_optimization: {stage: 1}\nsequence_parallel_size: 2\n"
    )
    run = read(tmp_path, text)
    assert (run.cp, run.unknown) == (2, ())


def test_an_unread_key_leaves_its_field_without_a_default(tmp_path: Path) -> None:
    run = read(tmp_path, AXOLOTL + "ring_context_parallel: 4\n")
    assert [each.option for each in run.unused] == ["ring_context_parallel"]
    assert (run.cp, "cp" in run.defaults, run.defaults["tp"].value) == (None, False, 1)


@pytest.mark.parametrize("launcher", ["--config_file acc.yaml", "--mixed_precision fp16"])
def test_the_trainer_decides_the_type_of_accelerate(tmp_path: Path, launcher: str) -> None:
    """transformers, training_args.py: `bf16` replaces the type that accelerate is started with."""
    (tmp_path / "acc.yaml").write_text(
        "distributed_type: FSDP\nnum_processes: 2\nmixed_precision: fp16\n"
    )
    (tmp_path / "lora.yaml").write_text(FACTORY.format(kind="lora"))
    (tmp_path / "run.sh").write_text(f"accelerate launch {launcher} src/train.py lora.yaml\n")
    run = read_config(tmp_path / "run.sh")
    assert (run.framework, run.precision) == ("llama-factory", "bf16")
    assert [each.field for each in run.overridden] == ["precision"]


@pytest.mark.parametrize(
    "command",
    [
        "tune run --nproc_per_node 8 full_finetune_distributed --config $X batch_size=2\n",
        "python3 -m verl.trainer.main_ppo --config-name $X data.train_batch_size=8 "
        "actor_rollout_ref.model.path=Qwen/Qwen3-8B trainer.n_gpus_per_node=8\n",
        "python megatron_gpt_pretraining.py --config-name=$X trainer.devices=8 model.a=2\n",
        "python3 -m MaxText.train $X per_device_batch_size=1 model_name=llama2-7b\n",
        "torchrun --nnodes $N --nproc_per_node 8 train.py --job.config_file $X\n",
        "CONFIG_FILE=$X NGPU=8 ./run_train.sh --parallelism.tensor_parallel_degree 2\n",
        "NGPU=8 ./run_train.sh --parallelism.context_parallel_degree 2\n",
        "torchrun pretrain_gpt.py --yaml-cfg $X --num-layers 4 --hidden-size 64 "
        "--num-attention-heads 4 --micro-batch-size 1\n",
        "NPROC_PER_NODE=8 swift sft $X --per_device_train_batch_size 2\n",
        "NPROC_PER_NODE=8 swift sft --config $X --per_device_train_batch_size 2\n",
        "source own.sh\ntorchrun pretrain_gpt.py --num-layers 4 --hidden-size 64 "
        "--num-attention-heads 4 --micro-batch-size 1 $OWN_ARGS\n",
    ],
)
def test_options_in_unknown_files_leave_no_defaults(tmp_path: Path, command: str) -> None:
    (tmp_path / "run.sh").write_text(command)
    run = read_config(tmp_path / "run.sh")
    assert run.unresolved
    assert "pp" not in run.defaults
    assert "$N" not in command or run.devices is None


def test_an_unknown_file_of_accelerate_leaves_the_sharding_open(tmp_path: Path) -> None:
    words = "--model_name_or_path Qwen/Qwen3-8B --per_device_train_batch_size 2"
    (tmp_path / "run.sh").write_text(f"accelerate launch --config_file $X run_clm.py {words}\n")
    run = read_config(tmp_path / "run.sh")
    assert [each.option for each in run.unresolved] == ["--config_file"]
    assert "zero_stage" not in run.defaults


def test_options_of_a_script_that_has_none_change_nothing(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(
        "while getopts 'n:m:' opt; do\n  case $opt in\n    n ) N=$OPTARG;;\n  esac\ndone\n"
        "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-8B "
        "actor_rollout_ref.rollout.n=${N:-8} actor_rollout_ref.actor.ppo_mini_batch_size=32\n"
    )
    assert read_config(tmp_path / "run.sh").global_batch == 256


def test_names_of_older_nanotron_and_nemo(tmp_path: Path) -> None:
    text = NANOTRON.partition("model:")[0]
    run = read(tmp_path, text + "model:\n  n_layer: 4\n  hidden_size: 256\n  n_inner: 1024\n")
    assert (run.model.num_layers, run.model.hidden_size, run.model.ffn_size) == (4, 256, 1024)
    run = read(
        tmp_path,
        "trainer: {devices: 8, num_nodes: 1}\nmodel:\n  tensor_model_parallel_size: 1\n"
        "  micro_batch_size: 1\n  optim: {name: fused_adam}\n",
    )
    assert (run.optimizer, run.zero_stage) == ("fused_adam", 0)


def test_generation_s_file_is_not_the_policy_s(tmp_path: Path) -> None:
    (tmp_path / "rollout").mkdir()
    (tmp_path / "rollout" / "rollout.yaml").write_text("tensor_model_parallel_size: 2\n")
    run = read(
        tmp_path,
        "defaults:\n- rollout@actor_rollout_ref.rollout: rollout\n- _self_\n"
        "actor_rollout_ref:\n  model: {path: Qwen/Qwen3-8B}\n"
        "  actor: {ppo_mini_batch_size: 8}\n  rollout: {tensor_model_parallel_size: 1}\n"
        "trainer: {n_gpus_per_node: 8, nnodes: 1}\n",
    )
    assert (run.unused, run.defaults["tp"].value, run.dp) == ((), 1, 8)


@pytest.mark.parametrize(
    ("command", "fields"),
    [
        (
            "torchrun pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 "
            "--micro-batch-size 1 --recompute-granularity $X "
            "--num-layers-per-virtual-pipeline-stage $X",
            ["recompute", "vpp"],
        ),
        (
            "llamafactory-cli train run.yaml per_device_train_batch_size=$X optim=$X "
            "gradient_accumulation_steps=$X deepspeed=$X",
            ["micro_batch", "optimizer", "gradient_accumulation", "zero_stage"],
        ),
        (
            "llamafactory-cli train --stage sft --finetuning_type lora "
            "--model_name_or_path Qwen/Qwen3-8B --lora_rank $X",
            ["model.lora_rank"],
        ),
        (
            "torchrun -m verl.trainer.fsdp_sft_trainer model.partial_pretrain=Qwen/Qwen3-8B "
            "data.micro_batch_size_per_gpu=$X",
            ["micro_batch"],
        ),
    ],
)
def test_an_unknown_value_leaves_its_field_open(
    tmp_path: Path, command: str, fields: list[str]
) -> None:
    (tmp_path / "run.yaml").write_text(FACTORY.format(kind="lora"))
    (tmp_path / "run.sh").write_text(command + "\n")
    run = read_config(tmp_path / "run.sh")
    for name in fields:
        owner = run.model if name.startswith("model.") else run
        assert (getattr(owner, name.rpartition(".")[2]), name in run.defaults) == (None, False)
    assert len(run.unresolved) >= len(fields)


@pytest.mark.parametrize(
    ("framework", "sizes"),
    [
        ("torchtitan", "training: {local_batch_size: '${SIZE}', seq_len: '${LENGTH:4096}'}"),
        ("maxtext", "per_device_batch_size: ${SIZE}\n      max_target_length: ${LENGTH:4096}"),
    ],
)
def test_variables_of_primus_s_files(tmp_path: Path, framework: str, sizes: str) -> None:
    text = (
        f"modules:\n  pre_trainer:\n    framework: {framework}\n    config: pre_trainer.yaml\n"
        f"    model: llama3_8B.yaml\n    overrides:\n      {sizes}\n"
    )
    run = read(tmp_path, text)
    assert (run.seq_len, run.micro_batch, "micro_batch" in run.defaults) == (4096, None, False)
    assert len(run.unresolved) == 1


def test_an_unknown_strategy_has_no_stage(tmp_path: Path) -> None:
    text = (
        "model: {_target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained}\n"
        "step_scheduler: {global_batch_size: 16, local_batch_size: 4}\n"
        "distributed: {strategy: '${oc.env:STRATEGY}'}\n"
    )
    run = read(tmp_path, text)
    assert [each.option for each in run.unresolved] == ["distributed.strategy"]
    assert (run.zero_stage, "zero_stage" in run.defaults) == (None, False)


def test_generations_of_ms_swift_are_answers(tmp_path: Path) -> None:
    """A file for `swift rlhf --rlhf_type grpo`, whose command is not in it."""
    text = (
        "model: Qwen/Qwen3-8B\ndataset: [a]\nnum_generations: 8\ntrain_type: full\n"
        "max_length: 2048\nmax_completion_length: 1024\nper_device_train_batch_size: 1\n"
    )
    run = read(tmp_path, text)
    assert (run.framework, run.seq_len) == ("ms-swift", 3072)
    assert [each.option for each in run.unresolved] == ["--num_generations"]


@pytest.mark.parametrize("name", ["ppo_trainer", "own"])
def test_verl_s_own_configurations_may_be_missing(tmp_path: Path, name: str) -> None:
    text = (
        f"defaults: [{name}, _self_]\nactor_rollout_ref:\n  model: {{path: Qwen/Qwen3-8B}}\n"
        "  actor: {ppo_mini_batch_size: 8}\ntrainer: {n_gpus_per_node: 8, nnodes: 1}\n"
    )
    run = read(tmp_path, text)
    own = name == "ppo_trainer"
    assert ("tp" in run.defaults, run.unresolved == ()) == (own, own)


@pytest.mark.parametrize(("path", "stage"), [("own/ds.json", None), ("/data/own/ds.json", 2)])
def test_a_file_of_another_folder_is_not_the_named_one(
    tmp_path: Path, path: str, stage: int | None
) -> None:
    """Only a path on another machine is found by its last part alone."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "ds.json").write_text('{"zero_optimization": {"stage": 2}, "fp16": {}}')
    run = read(tmp_path, FACTORY.format(kind="full") + f"deepspeed: {path}\n")
    assert (run.zero_stage, run.unresolved == ()) == (stage, stage is not None)


def test_a_short_file_of_accelerate_is_read(tmp_path: Path) -> None:
    (tmp_path / "acc.yaml").write_text("num_processes: 4\nmixed_precision: fp16\n")
    words = "--model_name_or_path Qwen/Qwen3-8B --per_device_train_batch_size 2"
    (tmp_path / "run.sh").write_text(f"accelerate launch --config_file acc.yaml clm.py {words}\n")
    run = read_config(tmp_path / "run.sh")
    assert (run.devices, run.precision) == (4, "fp16")

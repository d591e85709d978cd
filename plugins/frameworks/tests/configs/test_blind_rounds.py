"""Causes of wrong or missing values that public configurations showed, each with an own example."""

from __future__ import annotations

from pathlib import Path

import pytest
from shardwright_frameworks.reading.read_config import read_config

from plugins.frameworks.tests.configs.written_config import read
from profiles.errors import DocumentError

MEGATRON = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 64 "
    "--num-attention-heads 4 --micro-batch-size 1 --tensor-model-parallel-size 2"
)


def test_a_branch_that_sets_an_argument_decides_nothing(tmp_path: Path) -> None:
    script = (
        "DO=$1\nif [ $2 != false ] && [ $DO = false ]; then\n  DO=true\nfi\n"
        'if [ $DO = true ]; then\n  D=" --use-distributed-optimizer"\n'
        'elif [ $DO = false ]; then\n  D=" "\nfi\n'
        f"{MEGATRON} $D\n"
    )
    run = read(tmp_path, "a.sh", script)
    assert (run.zero_stage, run.distributed_optimizer) == (None, None)
    assert [each.option for each in run.unresolved] == ["--use-distributed-optimizer"]


def test_each_layout_of_a_list_is_a_run(tmp_path: Path) -> None:
    script = (
        'LAYOUTS=("4,1" "2,2")\nfor L in "${LAYOUTS[@]}"; do\n'
        "  IFS=',' read -r TP PP <<< \"$L\"\n"
        f"  {MEGATRON.rpartition(' ')[0]} $TP --pipeline-model-parallel-size $PP\ndone\n"
    )
    run = read(tmp_path, "a.sh", script)
    assert (run.tp, run.pp, run.runs) == (4, 1, 2)


def test_a_program_of_no_known_framework_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="no configuration of a known framework"):
        read(tmp_path, "a.sh", "torchrun --nproc_per_node 8 --nnodes 2 train_cats.py --lr 1\n")


def test_accelerate_starts_ms_swift_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "fsdp.json").write_text(
        '{"distributed_type": "FSDP", "num_processes": 2, "mixed_precision": "bf16", '
        '"fsdp_config": {"fsdp_version": 2, "fsdp_reshard_after_forward": true}}'
    )
    command = "accelerate launch --config_file fsdp.json swift/cli/sft.py --model Qwen/Qwen3-8B"
    run = read(tmp_path, "a.sh", f"{command} --torch_dtype bfloat16 --max_length 2048\n")
    assert (run.framework, run.devices, run.precision) == ("ms-swift", 2, "bf16")
    assert (run.zero_stage, run.seq_len, run.defaults["recompute"].value) == (3, 2048, "full")


def test_a_launch_of_an_unknown_recipe_has_no_defaults(tmp_path: Path) -> None:
    command = "torchrun --nproc_per_node 8 scripts/training/run_recipe.py --recipe $RECIPE"
    run = read(tmp_path, "a.sh", f"{command} model.seq_length=4096 train.global_batch_size=32\n")
    assert (run.framework, run.seq_len, run.global_batch) == ("megatron-bridge", 4096, 32)
    assert not {"tp", "pp", "cp"} & run.defaults.keys()


def test_two_axes_of_maxtext_shard_weights(tmp_path: Path) -> None:
    words = "ici_fsdp_parallelism=4 ici_fsdp_transpose_parallelism=2 per_device_batch_size=1"
    command = f"python3 -m maxtext.trainers.pre_train.train base.yml {words}"
    run = read(tmp_path, "a.sh", f"{command} max_target_length=2048 remat_policy=full\n")
    assert (run.dp, run.zero_stage, run.devices) == (8, 3, 8)


AUTOMODEL = """step_scheduler: {global_batch_size: 16, local_batch_size: 4}
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
  pretrained_model_name_or_path: NAME
distributed:
  strategy: fsdp2
  pp_size: 4
  pipeline: {pp_schedule: interleaved1f1b, pp_microbatch_size: 1, layers_per_stage: 4}
packed_sequence: {pack_size: 4096}
"""


def test_chunks_of_automodel_follow_from_the_layers_of_each(tmp_path: Path) -> None:
    run = read(tmp_path, "a.yaml", AUTOMODEL.replace("NAME", "meta-llama/Llama-3.1-8B"))
    assert (run.pp, run.vpp, run.seq_len, run.micro_batch) == (4, 2, 4096, 1)
    run = read(tmp_path, "b.yaml", AUTOMODEL.replace("NAME", "nobody/unknown"))
    assert (run.vpp, "vpp" in run.defaults) == (None, False)
    assert [one.option for one in run.unresolved] == ["distributed.pipeline.layers_per_stage"]


def test_old_experts_of_nanotron_leave_the_devices_open(tmp_path: Path) -> None:
    text = (
        "general: {run: a}\nmodel: {model_config: {moe_num_experts: 4, num_hidden_layers: 1}}\n"
        "parallelism: {dp: 1, tp: 2, pp: 1, expert_parallel_size: 2}\n"
        "tokens: {micro_batch_size: 1, sequence_length: 256, batch_accumulation_per_replica: 1}\n"
    )
    assert read(tmp_path, "a.yaml", text).devices is None


def test_primus_has_defaults_of_its_own_for_torchtitan(tmp_path: Path) -> None:
    text = (
        "modules:\n  pre_trainer:\n    framework: torchtitan\n    model: qwen3_1.7b.yaml\n"
        "    overrides:\n      parallelism: {tensor_parallel_degree: 2}\n"
    )
    assert read(tmp_path, "a.yaml", text).defaults["recompute"].value == "none"


def test_primus_names_chunks_as_megatron_does(tmp_path: Path) -> None:
    text = (
        "modules:\n  pre_trainer:\n    framework: megatron\n    model: grok1.yaml\n    overrides:\n"
        "      pipeline_model_parallel_size: 4\n      num_virtual_stages_per_pipeline_rank: 4\n"
        "      tensor_model_parallel_size: 1\n"
    )
    assert read(tmp_path, "a.yaml", text).vpp == 4


def test_adapters_of_the_second_llama_factory(tmp_path: Path) -> None:
    text = (
        "model: Qwen/Qwen3-4B\nmodel_class: llm\npeft_config: {name: lora, r: 16}\n"
        "dist_config: {name: fsdp2}\ntrain_dataset: a.yaml\nmicro_batch_size: 1\ncutoff_len: 2048\n"
    )
    assert read(tmp_path, "a.yaml", text).model.lora_rank == 16


def test_slime_trains_in_bf16_with_sharded_states(tmp_path: Path) -> None:
    command = (
        "ray job submit -- python3 train.py --actor-num-nodes ${NODES:-4} --colocate "
        "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --num-layers 4 "
        "--hidden-size 64 --num-attention-heads 4 --rollout-batch-size 32 "
        "--n-samples-per-prompt 8 --num-steps-per-rollout 2 --use-dynamic-batch-size "
        "--rollout-max-response-len 8192 --rollout-num-gpus-per-engine 8"
    )
    run = read(tmp_path, "a.sh", command + "\n")
    assert (run.framework, run.devices, run.tp, run.pp, run.dp) == ("slime", 32, 4, 2, 4)
    assert (run.global_batch, run.micro_batch, run.unknown) == (128, None, ())
    found = [run.defaults[key].value for key in ("precision", "zero_stage")]
    assert found == ["bf16", 1]


def test_options_of_megatron_as_keys(tmp_path: Path) -> None:
    text = (
        "MODEL_ARGS:\n  --num-layers: 12\n  --tensor-model-parallel-size: 2\n  --bf16: true\n"
        "  --pipeline-model-parallel-size: ${PP}\n  --use-distributed-optimizer: true\n"
        "  --swiglu: false\n"
    )
    run = read(tmp_path, "model_config.yaml", text)
    assert (run.framework, run.tp, run.pp, run.precision) == ("megatron-lm", 2, None, "bf16")
    assert (run.zero_stage, run.model.num_layers, run.model.gated_mlp) == (1, 12, None)
    assert [each.option for each in run.unresolved] == ["--pipeline-model-parallel-size"]
    assert "pp" not in run.defaults


def test_batches_of_maxtext_s_reinforcement_learning_are_open(tmp_path: Path) -> None:
    words = "model_name=llama3.1-8b batch_size=4 train_micro_batch_size=1 max_target_length=512"
    command = f"python3 -m maxtext.trainers.post_train.rl.train_rl {words} remat_policy=full"
    run = read(tmp_path, "a.sh", command + "\n")
    assert (run.micro_batch, run.global_batch, run.seq_len) == (None, None, 512)
    assert {each.option for each in run.unresolved} == {"batch_size", "train_micro_batch_size"}


def test_overrides_of_an_unnamed_recipe_have_no_defaults(tmp_path: Path) -> None:
    text = (
        "model: {seq_length: 8192, tensor_model_parallel_size: 8}\n"
        "train: {global_batch_size: 16, micro_batch_size: 1}\n"
    )
    run = read(tmp_path, "a.yaml", text)
    assert (run.framework, run.tp, run.global_batch) == ("megatron-bridge", 8, 16)
    assert not {"pp", "cp", "ep"} & run.defaults.keys()
    assert [each.option for each in run.unresolved] == ["recipe"]


def test_a_batch_that_grows_is_open(tmp_path: Path) -> None:
    run = read(tmp_path, "a.sh", f"{MEGATRON} --step-batch-size-schedule '0:384 200B:768'\n")
    assert (run.global_batch, "global_batch" in run.defaults) == (None, False)
    assert "--step-batch-size-schedule" in [each.option for each in run.unresolved]


def test_the_model_of_torchtitan_s_backend_for_transformers(tmp_path: Path) -> None:
    path = tmp_path / "config_registry.py"
    path.write_text(
        "from . import model_registry\n\ndef full() -> Backend:\n"
        '    return Backend(hf_model="Qwen/Qwen3-30B-A3B", model_spec=model_registry("full"),\n'
        "        training=TrainingConfig(max_context_length=2048))\n"
    )
    run = read_config(f"{path}:full")
    assert (run.model.name, run.model.flavor) == ("Qwen/Qwen3-30B-A3B", None)
    assert run.model.num_layers == 48


def test_llama_factory_has_no_precision_without_a_type(tmp_path: Path) -> None:
    text = (
        "model_name_or_path: Qwen/Qwen3-8B\nstage: sft\nfinetuning_type: full\n"
        "use_badam: true\ncutoff_len: 2048\nper_device_train_batch_size: 1\n"
    )
    run = read(tmp_path, "a.yaml", text)
    assert (run.optimizer, run.precision) == (None, None)
    assert not {"optimizer", "precision"} & run.defaults.keys()
    assert [each.option for each in run.unused] == ["use_badam"]


def test_nanotron_s_configuration_in_python(tmp_path: Path) -> None:
    path = tmp_path / "config.py"
    path.write_text(
        "import os\nfrom nanotron.config import Config, LlamaConfig, ParallelismArgs\n"
        "layers = LlamaConfig(hidden_size=16, num_hidden_layers=2)\n"
        "parallelism = ParallelismArgs(dp=2, pp=2, tp=int(os.environ['TP']))\n"
        "config = Config(model=ModelArgs(model_config=layers), parallelism=parallelism,\n"
        "    tokens=TokensArgs(micro_batch_size=2, sequence_length=256))\n"
    )
    run = read_config(path)
    assert (run.framework, run.dp, run.pp, run.tp) == ("nanotron", 2, 2, None)
    assert (run.micro_batch, run.model.num_layers, run.devices) == (2, 2, None)
    assert "tp" not in run.defaults


def test_a_ray_job_of_ms_swift(tmp_path: Path) -> None:
    text = (
        "model: Qwen/Qwen3-8B\nmicro_batch_size: 2\nglobal_batch_size: 16\nmax_length: 4096\n"
        "train: {gpus: 4, tensor_model_parallel_size: 2, pipeline_model_parallel_size: 1}\n"
        "rollout: {gpus: 2, vllm_tensor_parallel_size: 2}\n"
    )
    run = read(tmp_path, "a.yaml", text)
    assert (run.framework, run.devices, run.tp, run.dp) == ("ms-swift", 4, 2, 2)
    assert (run.seq_len, run.global_batch, run.model.name) == (4096, 16, "Qwen/Qwen3-8B")


def test_a_change_of_another_model_of_nemo_rl_is_no_trainer_s(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(
        "policy:\n  model_name: Qwen/Qwen3-8B\n  megatron_cfg:\n    enabled: true\n"
        "    tensor_model_parallel_size: 2\ncluster: {num_nodes: 1, gpus_per_node: 8}\n"
    )
    text = (
        "defaults: base.yaml\ncheckpointing: {checkpoint_dir: a}\nvalue:\n  megatron_cfg:\n"
        "    pipeline_model_parallel_size: 4\n    context_parallel_size: 2\n"
    )
    run = read(tmp_path, "a.yaml", text)
    assert (run.framework, run.tp, run.pp, run.defaults["pp"].value) == ("nemo-rl", 2, None, 1)


def test_a_configuration_of_nemo_s_launcher_has_no_defaults(tmp_path: Path) -> None:
    command = "python3 launcher_scripts/main.py stages=[training] training=gpt3/5b"
    run = read(tmp_path, "a.sh", f"{command} training.trainer.num_nodes=2\n")
    assert (run.framework, run.nodes) == ("nemo", 2)
    assert not {"tp", "pp", "ep"} & run.defaults.keys()


def test_a_conversion_of_weights_is_no_run(tmp_path: Path) -> None:
    program = "examples/conversion/roundtrip_multi_gpu.py"
    with pytest.raises(DocumentError, match="no configuration of a known framework"):
        read(tmp_path, "a.sh", f"torchrun --nproc_per_node=4 {program} --tp 2 --pp 2\n")


def test_arguments_of_nemo_s_performance_scripts(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(
        "from nemo.collections.llm.recipes import llama31_70b\n\ndef recipe():\n"
        "    pretrain = llama31_70b.pretrain_recipe(performance_mode=True)\n"
        "    pretrain = set_primary_perf_configs(pretrain, num_nodes=16, num_gpus_per_node=4,\n"
        "        mbs=1, gbs=2048, tp_size=2, pp_size=1, cp_size=1, compute_dtype='fp8')\n"
        "    return pretrain\n"
    )
    run = read_config(f"{path}:recipe")
    assert (run.tp, run.pp, run.devices, run.precision) == (2, 1, 64, "fp8")
    assert (run.micro_batch, run.global_batch) == (1, 2048)
    assert "recompute" not in run.defaults  # the recipe that it changes is not there


def test_axolotl_multiplies_in_fp8(tmp_path: Path) -> None:
    text = (
        "base_model: meta-llama/Llama-3.2-3B\ndatasets: [{path: a, type: alpaca}]\nbf16: true\n"
        "fp8: true\nsequence_len: 512\nmicro_batch_size: 16\n"
    )
    assert read(tmp_path, "a.yaml", text).precision == "fp8"


def test_primus_s_command_replaces_overrides_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "exp.yaml").write_text(
        "modules:\n  pre_trainer:\n    framework: megatron\n    model: qwen3_8B.yaml\n"
        "    overrides:\n      micro_batch_size: 2\n      global_batch_size: 64\n"
        "      seq_length: 4096\n      tensor_model_parallel_size: ${PRIMUS_TP:1}\n"
        "      pipeline_model_parallel_size: ${PRIMUS_PP:1}\n"
    )
    script = (
        "export NNODES=2\nexport PRIMUS_TP=4\n"
        "bash ./primus-cli direct -- train pretrain --config exp.yaml --micro_batch_size 8 "
        "--pipeline_model_parallel_size 2\n"
    )
    run = read(tmp_path, "a.sh", script)
    assert (run.framework, run.tp, run.pp, run.devices) == ("primus", 4, 2, 16)
    assert (run.micro_batch, run.global_batch, run.seq_len) == (8, 64, 4096)
    assert run.defaults["zero_stage"].value == 1
    assert run.contradictions == ()
    script = (
        "export NNODES=2\nexport EXP=exp.yaml\n"
        "bash examples/run_slurm_pretrain.sh --optimizer muon --expert_model_parallel_size 4\n"
    )
    run = read(tmp_path, "b.sh", script)
    assert (run.framework, run.devices, run.optimizer, run.ep) == ("primus", 16, "muon", 4)


def test_a_suite_of_nemo_rl_runs_the_configuration_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    recipes, suite = tmp_path / "examples/configs/recipes/llm", tmp_path / "tests/suites/llm"
    recipes.mkdir(parents=True)
    suite.mkdir(parents=True)
    (tmp_path / "examples/configs/base.yaml").write_text(
        "policy:\n  model_name: Qwen/Qwen3-8B\n  train_micro_batch_size: 2\n"
        "  dynamic_batching: {enabled: true}\n  megatron_cfg:\n    enabled: true\n"
        "    tensor_model_parallel_size: 2\n    pipeline_model_parallel_size: 1\n"
        "cluster: {num_nodes: 1, gpus_per_node: 8}\n"
    )
    (recipes / "sft-a.yaml").write_text("defaults: ../../base.yaml\npolicy: {precision: float16}\n")
    (suite / "sft-a.sh").write_text(
        "CONFIG=$(echo $DIR/sft-a.yaml | sed 's#a#b#')\n"
        "uv run examples/run_sft.py --config $CONFIG cluster.num_nodes=2 $@\n"
    )
    run = read_config(suite / "sft-a.sh")
    assert (run.framework, run.tp, run.pp, run.precision) == ("nemo-rl", 2, 1, "fp16")
    assert (run.devices, run.micro_batch, run.overridden[0].field) == (16, None, "num_nodes")
    assert [one.option for one in run.unresolved] == ["policy.dynamic_batching.enabled"]
    (suite / "sft-b.sh").write_text("uv run examples/run_sft.py --config $CONFIG policy.x=2\n")
    run = read_config(suite / "sft-b.sh")
    assert (run.framework, run.tp, "tp" in run.defaults) == ("nemo-rl", None, False)


def test_primus_reads_its_own_files_of_trainer_and_model(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    for name, text in {
        "modules/megatron/base.yaml": "micro_batch_size: 2\nglobal_batch_size: 128\nbf16: true\n",
        "modules/megatron/pre_trainer.yaml": (
            "extends:\n  - base.yaml\nglobal_batch_size: 16\nuse_distributed_optimizer: true\n"
        ),
        "models/megatron/small.yaml": (
            "num_layers: 12\nhidden_size: 64\nsequence_parallel: true\nlinear_num_key_heads: 4\n"
        ),
    }.items():
        path = tmp_path / "primus/configs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "exp").mkdir()
    text = (
        "modules:\n  pre_trainer:\n    framework: megatron\n    config: pre_trainer.yaml\n"
        "    model: small.yaml\n    overrides:\n      tensor_model_parallel_size: 2\n"
        "      hidden_size: 128\n"
    )
    run = read(tmp_path / "exp", "a.yaml", text)
    assert (run.micro_batch, run.global_batch, run.zero_stage) == (2, 16, 1)
    assert (run.model.num_layers, run.model.hidden_size, run.sequence_parallel) == (12, 128, True)
    assert [one.option for one in run.unused] == ["linear_num_key_heads"]
    (tmp_path / "alone").mkdir()
    (tmp_path / "pyproject.toml").unlink()
    run = read(tmp_path / "alone", "a.yaml", text)
    found = [run.defaults[key].value for key in ("global_batch", "seq_len", "sequence_parallel")]
    assert found == [16, 1024, True]


def test_primus_names_a_model_of_torchtitan_with_its_flavor(tmp_path: Path) -> None:
    text = (
        "modules:\n  pre_trainer:\n    framework: torchtitan\n    model: deepseek_v3_236b.yaml\n"
        "    overrides:\n      parallelism: {tensor_parallel_degree: 2}\n"
    )
    assert read(tmp_path, "a.yaml", text).model.num_layers == 60  # DeepSeek-V2


def test_lengths_of_torchtitan_s_validation_are_no_trainer_s(tmp_path: Path) -> None:
    text = (
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nseq_len = 8192\n'
        "[parallelism]\ntensor_parallel_degree = 2\n[validation]\nseq_len = 512\n"
    )
    assert read(tmp_path, "a.toml", text).seq_len == 8192


def test_an_axis_of_maxtext_that_takes_the_rest_is_open(tmp_path: Path) -> None:
    words = "ici_fsdp_parallelism=1 ici_expert_parallelism=-1 per_device_batch_size=1"
    command = f"python3 -m maxtext.trainers.pre_train.train base.yml {words}"
    run = read(tmp_path, "a.sh", f"{command} max_target_length=2048 remat_policy=full\n")
    assert (run.ep, run.dp, run.zero_stage) == (None, None, None)
    assert "ep" not in run.defaults
    assert [one.option for one in run.unresolved] == ["ici_expert_parallelism"]


def test_a_job_of_gke_has_the_devices_of_its_topology(tmp_path: Path) -> None:
    text = """kind: JobSet
spec:
  replicatedJobs:
    - replicas: 2
      template:
        nodeSelector:
          cloud.google.com/gke-tpu-accelerator: KIND
          cloud.google.com/gke-tpu-topology: 4x4
        command: [bash, -c, "python3 -m maxtext.train base.yml per_device_batch_size=2
          max_target_length=2048 ici_fsdp_parallelism=16 dcn_data_parallelism=-1"]
"""
    run = read(tmp_path, "a.yaml", text.replace("KIND", "tpu-v6e-slice"))
    assert (run.device, run.devices, run.global_batch) == ("tpu-v6e", 32, 64)
    run = read(tmp_path, "a.yaml", text.replace("KIND", "tpu-v5-lite-podslice"))
    assert (run.device, run.devices) == ("tpu-v5e", 32)


def test_the_launcher_of_a_chart_has_its_values(tmp_path: Path) -> None:
    values = (
        "workload:\n  gpus: 16\n  configFile: recipe.py\n  envs:\n"
        "  - {name: SCRIPT, value: /workload/configs/recipe.py}\n"
    )
    with pytest.raises(DocumentError, match=r"a Helm chart; .* 'recipe.py'"):
        read(tmp_path, "values.yaml", values)
    (tmp_path / "recipe.py").write_text(
        "from nemo.collections.llm.recipes import llama31_70b\n\ndef recipe():\n"
        "    pretrain = llama31_70b.pretrain_recipe()\n"
        "    pretrain = set_primary_perf_configs(pretrain, mbs=1, gbs=32, tp_size=4, pp_size=2)\n"
        "    return pretrain\n"
    )
    (tmp_path / "launcher.sh").write_text(
        'torchrun --nproc-per-node=8 --nnodes="$NNODES" $SCRIPT --factory "recipe()" '
        "trainer.num_nodes=2\n"
    )
    run = read(tmp_path, "values.yaml", values)
    assert (run.framework, run.tp, run.pp, run.devices) == ("nemo", 4, 2, 16)
    assert (run.micro_batch, run.global_batch, run.unused) == (1, 32, ())
    assert "sequence_parallel" not in run.defaults


def test_a_program_of_no_framework_is_named(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"starts chatlearn/entrypoint.py \(a.sh:1\)"):
        read(tmp_path, "a.sh", "torchrun chatlearn/entrypoint.py grpo --config-file a.yaml\n")


def test_layers_of_other_kinds_are_named(tmp_path: Path) -> None:
    run = read(tmp_path, "a.sh", f"{MEGATRON} --hybrid-attention-ratio 0.1 --spec a b\n")
    assert [one.option for one in run.unused] == ["hybrid_attention_ratio", "spec"]


def test_options_that_yq_prints_are_those_of_each_job(tmp_path: Path) -> None:
    (tmp_path / "model.yaml").write_text(
        "ENV_VARS:\n  A: 1\nMODEL_ARGS:\n  # sizes\n  --num-layers: 7\n  --hidden-size: 64\n"
        "  --num-attention-heads: 4\n  --tensor-model-parallel-size: ${TP}\n  --bf16: true\n"
        "  --pipeline-model-parallel-size: 4\n  --num-layers-per-virtual-pipeline-stage: 1\n"
        "  --account-for-loss-in-pipeline-split: true\n  --swiglu: false\n"
    )
    (tmp_path / "job.sh").write_text(
        "envsubst < model.yaml > model.yaml.tmp\n"
        "P=$(yq '... | .MODEL_ARGS | to_entries | .[]' model.yaml.tmp | tr '\\n' ' ')\n"
        "sbatch <<EOF\n#!/bin/bash\n#SBATCH --nodes=$NODES\n#SBATCH --ntasks-per-node=8\n"
        "srun python pretrain_gpt.py $P\nEOF\n"
    )
    run = read(tmp_path, "a.sh", "TP=2 NODES=4 bash job.sh\nTP=4 NODES=16 bash job.sh\n")
    assert (run.tp, run.devices, run.runs, run.precision) == (2, 32, 2, "bf16")
    assert (run.vpp, run.model.gated_mlp, run.contradictions) == (2, None, ())


def test_processes_of_a_node_are_those_of_all_that_mason_takes(tmp_path: Path) -> None:
    command = (
        "python mason.py --num_nodes 4 --gpus 8 -- accelerate launch --num_processes 8 "
        "finetune.py --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 1\n"
    )
    assert read(tmp_path, "a.sh", command).devices == 32


def test_a_recipe_of_trl_is_sharded_as_its_command_says(tmp_path: Path) -> None:
    text = "model_name_or_path: Qwen/Qwen3-4B\nper_device_train_batch_size: 1\nbf16: true\n"
    run = read(tmp_path, "sft.yaml", text)
    assert (run.framework, run.zero_stage, "zero_stage" in run.defaults) == (
        "transformers", None, False,
    )  # fmt: skip
    (tmp_path / "zero3.yaml").write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config: {zero_stage: 3}\n"
    )
    command = "accelerate launch --config_file zero3.yaml sft.py --config sft.yaml\n"
    run = read(tmp_path, "a.sh", command)
    assert (run.zero_stage, run.devices, run.precision) == (3, 8, "bf16")


def test_verl_s_megatron_has_no_default_that_changed(tmp_path: Path) -> None:
    command = (
        "python3 -m verl.trainer.main_ppo --config-name=ppo_megatron_trainer "
        "actor_rollout_ref.model.path=Qwen/Qwen3-4B trainer.n_gpus_per_node=8 trainer.nnodes=1"
    )
    run = read(tmp_path, "a.sh", f"{command}\n")
    assert (run.tp, "tp" in run.defaults, run.dp) == (None, False, None)
    option = "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2"
    assert read(tmp_path, "a.sh", f"{command} {option}\n").dp == 4


def test_a_sourced_file_of_the_folder_above(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "env.sh").write_text("export NPROC=4\n")
    (tmp_path / "a").mkdir()
    script = (
        'DIR="$(cd "$(dirname "$0")" && pwd)"\nsource "$DIR/../env.sh"\n'
        f"{MEGATRON.replace('8', '$NPROC')}\n"
    )
    assert read(tmp_path / "a", "a.sh", script).devices == 4


def test_flagscale_has_the_defaults_of_megatron(tmp_path: Path) -> None:
    text = (
        "system: {tensor_model_parallel_size: 2, pipeline_model_parallel_size: 1}\n"
        "model: {num_layers: 4, micro_batch_size: 1}\ndata: {split: 1}\n"
    )
    run = read(tmp_path, "a.yaml", text)
    assert [run.defaults[key].value for key in ("optimizer", "recompute")] == ["adam", "none"]


def test_micro_batches_of_all_replicas_of_verl(tmp_path: Path) -> None:
    command = (
        "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-4B "
        "actor_rollout_ref.actor.ppo_mini_batch_size=64 trainer.n_gpus_per_node=8 "
        "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2 "
        "actor_rollout_ref.actor.ppo_micro_batch_size=32"
    )
    run = read(tmp_path, "a.sh", f"{command} trainer.nnodes=1\n")
    assert (run.micro_batch, run.dp, run.contradictions) == (8, 4, ())
    run = read(tmp_path, "a.sh", f"{command}_per_gpu\n".replace("=32_per_gpu", "_per_gpu=2"))
    assert run.micro_batch == 2
    run = read(tmp_path, "a.sh", f"{command.replace('8 ', '$GPUS ')} trainer.nnodes=$N\n")
    assert run.micro_batch is None


def test_a_missing_file_of_a_run_leaves_no_defaults(tmp_path: Path) -> None:
    command = "python3 -m maxtext.trainers.pre_train.train models/small.yml ici_fsdp_parallelism=8"
    run = read(tmp_path, "a.sh", f"{command} per_device_batch_size=1 steps=3\n")
    assert (run.zero_stage, run.recompute, run.defaults.get("recompute")) == (3, None, None)


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("a.yaml", AUTOMODEL.replace(", layers_per_stage: 4", ""), "vpp", 2),
        ("a.sh", "python3 -m openrlhf.cli.train_sft --train.batch_size 8\n", "optimizer", "adamw"),
        (
            "a.sh",
            "python3 -m openrlhf.cli.train_sft --model.optim muon --train.batch_size 8\n",
            "optimizer",
            "muon",
        ),
    ],
)
def test_defaults_of_sources(tmp_path: Path, name: str, text: str, field: str, value: str) -> None:
    assert read(tmp_path, name, text).answer(field) == value


def test_a_batch_that_begins_smaller_is_named(tmp_path: Path) -> None:
    run = read(tmp_path, "a.sh", f"{MEGATRON} --global-batch-size 512 --rampup-batch-size 32 1 9\n")
    assert [one.option for one in run.unused] == ["rampup_batch_size"]


def test_a_file_without_keys_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="no configuration of a known framework"):
        read(tmp_path, "a.yml", "---\n[]\n")


def test_stages_of_unequal_layers_are_named(tmp_path: Path) -> None:
    options = "--pipeline-model-parallel-size 3 --decoder-first-pipeline-num-layers 2"
    run = read(
        tmp_path, "a.sh", f"{MEGATRON.replace('parallel-size 2', 'parallel-size 1')} {options}\n"
    )
    assert [one.option for one in run.unused] == ["--decoder-first-pipeline-num-layers"]
    assert not [one for one in run.contradictions if one.field == "pp"]


def test_a_variable_that_a_script_sets_has_no_default_of_the_file(tmp_path: Path) -> None:
    """As MLPerf's folders: conf/custom.yaml, whose variables config_*.sh sets."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "config_A.sh").write_text("export CHUNKS=6\nexport FP8=True\n")
    text = (
        "trainer: {devices: 8, precision: bf16}\nmodel:\n  tensor_model_parallel_size: 4\n"
        "  virtual_pipeline_model_parallel_size: ${oc.decode:${oc.env:CHUNKS,12}}\n"
        "  pipeline_model_parallel_size: ${oc.decode:${oc.env:STAGES,8}}\n"
        "  micro_batch_size: 1\n  fp8: ${oc.decode:${oc.env:FP8,False}}\n"
    )
    for run in (read(tmp_path / "conf", "a.yaml", text), read_config(tmp_path)):
        assert (run.tp, run.pp, run.vpp, run.precision) == (4, 8, None, None)
        assert not {"vpp", "precision"} & run.defaults.keys()
        assert "a script sets CHUNKS" in " ".join(one.why for one in run.unresolved)


def test_verl_s_own_tree_answers_for_a_command(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    tree = tmp_path / "verl/trainer/config"
    for name, text in {
        "ppo_trainer.yaml": (
            "defaults:\n  - model_engine: dp\n  - actor@actor_rollout_ref.actor: "
            "${model_engine}_actor\n  - rollout@actor_rollout_ref.rollout: rollout\n"
            "  - _self_\ndata: {train_files: a, max_prompt_length: 512, max_response_length: 256}\n"
            "trainer: {nnodes: 1, n_gpus_per_node: 8}\n"
        ),
        "ppo_megatron_trainer.yaml": (
            "defaults:\n  - ppo_trainer\n  - override model_engine: megatron\n  - _self_\n"
        ),
        "model_engine/dp.yaml": "model_engine: dp\n",
        "model_engine/megatron.yaml": "# @package _global_\nmodel_engine: megatron\n",
        "engine/fsdp.yaml": "dtype: bfloat16\nulysses_sequence_parallel_size: 1\n",
        "engine/megatron.yaml": "tensor_model_parallel_size: 1\nuse_distributed_optimizer: true\n",
        "actor/dp_actor.yaml": (
            "defaults:\n  - ../engine@fsdp_config: fsdp\n  - actor\n  - _self_\n"
        ),
        "actor/megatron_actor.yaml": (
            "defaults:\n  - ../engine@megatron: megatron\n  - actor\n  - _self_\n"
        ),
        "actor/actor.yaml": "ppo_mini_batch_size: 64\nppo_micro_batch_size_per_gpu: null\n",
        "rollout/rollout.yaml": "tensor_model_parallel_size: 2\nn: 1\n",
        "sft_trainer_engine.yaml": (
            "defaults:\n  - engine@engine: fsdp\n  - _self_\n"
            "data: {train_files: a, use_dynamic_bsz: true, train_batch_size: 256}\n"
            "trainer: {nnodes: 1, n_gpus_per_node: 1}\n"
        ),
    }.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    run = read_config(tree / "ppo_trainer.yaml")
    assert (run.framework, run.tp, run.zero_stage, run.global_batch) == ("verl", None, None, 64)
    assert (run.defaults["tp"].value, run.seq_len, run.devices) == (1, 768, 8)
    run = read_config(tree / "ppo_megatron_trainer.yaml")
    assert (run.framework, run.tp, run.zero_stage) == ("verl", 1, 1)
    (tmp_path / "examples").mkdir()
    actor = "actor_rollout_ref.actor"
    command = (
        "LAUNCH=(python3)\nif [ $A = 1 ]; then LAUNCH=(uv run python3); fi\n"
        f'"${{LAUNCH[@]}}" -m verl.trainer.main_ppo model_engine=megatron trainer.nnodes=2 '
        f"{actor}.megatron.tensor_model_parallel_size=4 actor_rollout_ref.rollout.n=8\n"
    )
    run = read(tmp_path / "examples", "a.sh", command)
    assert (run.tp, run.devices, run.global_batch, run.seq_len) == (4, 16, 512, 768)
    command = "torchrun --nproc_per_node=4 -m verl.trainer.sft_trainer engine=fsdp\n"
    run = read(tmp_path / "examples", "b.sh", command)
    assert (run.devices, run.global_batch, run.micro_batch) == (4, 256, None)
    run = read(tmp_path / "examples", "c.sh", command.replace("=fsdp", "=mlite engine.tp=2"))
    assert (run.tp, "zero_stage" in run.defaults) == (2, False)


REGISTRY = """from benchmarks.benchmark_utils import MaxTextModel, _add_to_model_dictionary

small = _add_to_model_dictionary(
    models,
    MaxTextModel(
        model_name="llama2-7b-4096",
        model_type="llama2-7b",
        tuning_params={
            "per_device_batch_size": 4,
            "ici_fsdp_parallelism": 1,
            "ici_fsdp_transpose_parallelism": -1,
            "remat_policy": "full",
            "max_target_length": 4096,
        },
    ),
)
"""


def test_a_benchmark_of_maxtext_s_registry(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "benchmarks").mkdir()
    path = tmp_path / "benchmarks/maxtext_trillium_model_configs.py"
    path.write_text(REGISTRY)
    run = read_config(f"{path}:llama2_7b_4096")
    assert (run.framework, run.zero_stage, run.dp, run.seq_len) == ("maxtext", 3, None, 4096)
    with pytest.raises(DocumentError, match="a registry of benchmarks"):
        read_config(path)
    command = (
        "python3 -m benchmarks.benchmark_runner xpk --device_type v6e-256 --num_slices 2 "
        "--model_name=llama2_7b_4096"
    )
    run = read(tmp_path, "a.sh", f"{command}\n")
    assert (run.devices, run.dp, run.global_batch, run.contradictions) == (512, 512, 2048, ())


def test_a_launcher_of_megatron_bridge_starts_the_recipe_of_its_tree(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    tree = tmp_path / "src/megatron/bridge"
    body = (
        "from megatron.bridge.peft.lora import LoRA\n\n\ndef {}():\n"
        "    cfg = ConfigContainer(model=Provider(), train=TrainingConfig())\n"
        "    cfg.model.tensor_model_parallel_size = 2\n"
        "    cfg.model.pipeline_model_parallel_size = 4\n    cfg.train.global_batch_size = 64\n"
        "    cfg.train.micro_batch_size = 1\n    cfg.peft = LoRA()\n    return cfg\n"
    )
    for name, text in {
        "recipes/__init__.py": "from megatron.bridge.recipes.llama import *\n",
        "recipes/llama/__init__.py": "from .llama3 import llama3_8b_peft_config\n",
        "recipes/llama/llama3.py": body.format("llama3_8b_peft_config"),
        "perf_recipes/llama/h100.py": body.format("llama3_8b_pretrain_16gpu_h100_fp8cs_config"),
    }.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    start = "bash scripts/training/train.sh --nodes 2 --gpus-per-node 8"
    (tmp_path / "scripts/training").mkdir(parents=True)
    (tmp_path / "scripts/training/train.sh").write_text(
        'exec uv run python "${SCRIPT_DIR}/setup_experiment.py" "$@"\n'
    )
    run = read(tmp_path, "a.sh", f"{start} --model llama3_8b --mode lora -tp 4\n")
    assert (run.framework, run.tp, run.pp, run.devices) == ("megatron-bridge", 4, 4, 16)
    assert (run.global_batch, run.model.lora_rank) == (64, 32)
    command = (
        "python scripts/performance/setup_experiment.py -m llama -mr llama3_8b -ng 16 -g h100 "
        "-c fp8_cs"
    )
    run = read(tmp_path, "b.sh", f"{command}\n")
    assert (run.tp, run.pp, run.devices, run.precision, run.global_batch) == (2, 4, 16, "fp8", 64)
    recipe = "llama3_8b_pretrain_16gpu_h100_fp8cs_config"
    run = read(tmp_path, "c.sh", f"{start.replace('2', '4', 1)} --recipe {recipe}\n")
    assert (run.devices, run.global_batch) == (32, None)


def test_classes_of_nanotron_are_no_run(tmp_path: Path) -> None:
    text = "from nanotron.config import Config\n\nclass A(Config):\n    model: int = 1\n"
    with pytest.raises(DocumentError, match="no configuration of a known framework"):
        read(tmp_path, "config.py", text)


def test_a_file_that_its_command_shards(tmp_path: Path) -> None:
    text = "model_name_or_path: Qwen/Qwen3-8B\nfinetuning_type: lora\ncutoff_len: 512\nbf16: true\n"
    run = read(tmp_path, "sft_fsdp.yaml", text)
    assert (run.framework, run.zero_stage, "zero_stage" in run.defaults) == (
        "llama-factory", None, False,
    )  # fmt: skip
    assert read(tmp_path, "sft.yaml", text).defaults["zero_stage"].value == 0


def test_a_rank_without_an_adapter_has_no_effect(tmp_path: Path) -> None:
    text = "base_model: Qwen/Qwen3-8B\ndatasets: [{path: a}]\nsequence_len: 512\nlora_r: 64\n"
    run = read(tmp_path, "a.yml", f"{text}adapter:\n")
    assert (run.framework, run.model.lora_rank) == ("axolotl", None)
    assert [one.option for one in run.unused] == ["lora_r"]
    assert [run.defaults[key].value for key in ("zero_stage", "optimizer")] == [
        0, "adamw_torch_fused",
    ]  # fmt: skip
    assert read(tmp_path, "b.yml", f"{text}adapter: qlora\n").model.lora_rank == 64


def test_adapters_of_ms_swift_on_megatron_have_its_rank(tmp_path: Path) -> None:
    command = "megatron sft --model Qwen/Qwen3-8B --tensor_model_parallel_size 2"
    run = read(tmp_path, "a.sh", f"NPROC_PER_NODE=2 {command} --tuner_type lora\n")
    assert (run.framework, run.model.lora_rank) == ("ms-swift", 8)
    run = read(tmp_path, "b.sh", f"NPROC_PER_NODE=2 {command} --tuner_type full --lora_rank 4\n")
    assert run.model.lora_rank is None
    assert read(tmp_path, "c.sh", f"NPROC_PER_NODE=2 {command}\n").model.lora_rank is None


@pytest.mark.parametrize(
    ("method", "layers", "expected"),
    [("block", 0, ("none", None)), ("block", 2, ("full", 2)), ("uniform", 1, ("full", None))],
)
def test_layers_that_run_again_are_those_of_the_method_block(
    tmp_path: Path, method: str, layers: int, expected: tuple[str, int | None]
) -> None:
    text = (
        "modules:\n  pre_trainer:\n    framework: megatron\n    model: qwen3_8B.yaml\n"
        "    overrides:\n      tensor_model_parallel_size: 1\n      micro_batch_size: 1\n"
        f"      recompute_granularity: full\n      recompute_method: {method}\n"
        f"      recompute_num_layers: {layers}\n"
    )
    run = read(tmp_path, "a.yaml", text)
    assert (run.recompute, run.recompute_layers) == expected
    options = f"--recompute-granularity full --recompute-method {method}"
    run = read(tmp_path, "a.sh", f"{MEGATRON} {options} --recompute-num-layers {layers}\n")
    assert (run.recompute, run.recompute_layers) == expected


def test_a_global_scale_of_maxtext_scales_the_model(tmp_path: Path) -> None:
    words = (
        "base_emb_dim=2048 base_num_query_heads=16 base_mlp_dim=7168 base_num_decoder_layers=16 "
        "global_parameter_scale=32 ici_tensor_parallelism=4 ici_fsdp_parallelism=-1 "
        "per_device_batch_size=3 max_target_length=2048"
    )
    run = read(tmp_path, "a.sh", f"python3 -m maxtext.trainers.pre_train.train base.yml {words}\n")
    model = run.model
    assert (model.num_layers, model.hidden_size, model.num_heads) == (32, 2048 * 4, 16 * 4)
    assert (model.ffn_size, run.micro_batch) == (7168 * 4, 12)


def test_answers_belong_to_the_length_of_ms_swift(tmp_path: Path) -> None:
    command = "megatron rlhf --rlhf_type grpo --model Qwen/Qwen3-8B --max_length 1024"
    run = read(tmp_path, "a.sh", f"NPROC_PER_NODE=2 {command} --max_completion_length 2048\n")
    assert run.seq_len == 3072
    run = read(tmp_path, "b.sh", f"NPROC_PER_NODE=2 {command.replace('megatron', 'swift')}\n")
    assert run.seq_len == 1536


def test_published_weights_in_few_bits_are_named(tmp_path: Path) -> None:
    text = "model_name_or_path: A/Llama-3-8B-GPTQ\nfinetuning_type: lora\ncutoff_len: 512\n"
    run = read(tmp_path, "a.yaml", text)
    assert [one.why.partition(":")[0] for one in run.unresolved] == ["GPTQ"]


def test_adapters_of_torchtitan_are_converters(tmp_path: Path) -> None:
    path = tmp_path / "config_registry.py"
    path.write_text(
        "from . import model_registry\n\ndef small() -> Trainer.Config:\n"
        "    return Trainer.Config(\n"
        '        model_spec=model_registry("8B", converters=[LoRAConverter.Config(rank=16)]),\n'
        "        training=TrainingConfig(max_context_length=2048))\n"
    )
    assert read_config(f"{path}:small").model.lora_rank == 16


def test_a_base_file_of_maxtext(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "configs/post_train").mkdir(parents=True)
    (tmp_path / "configs/base.yml").write_text(
        "model_name: default\nbase_emb_dim: 2048\nnum_experts: 1\nmax_target_length: 2048\n"
        "per_device_batch_size: 12.0\nici_fsdp_parallelism: -1\n"
    )
    text = "base_config: base.yml\nuse_sft: true\nmax_target_length: 1024\ndataset_type: hf\n"
    run = read(tmp_path / "configs/post_train", "a.yml", text)
    assert (run.framework, run.seq_len, run.zero_stage) == ("maxtext", 1024, 3)
    assert (run.model.hidden_size, run.model.num_experts) == (2048, None)


def test_adapters_are_read_or_named(tmp_path: Path) -> None:
    text = "model_name_or_path: Qwen/Qwen3-8B\ncutoff_len: 512\nlora_rank: 16\n"
    assert read(tmp_path, "a.yaml", f"{text}finetuning_type: full\n").model.lora_rank is None
    assert read(tmp_path, "b.yaml", text).model.lora_rank == 16
    run = read(tmp_path, "c.yaml", f"{text}finetuning_type: freeze\n")
    assert (run.model.lora_rank, run.unresolved[0].option) == (None, "finetuning_type")
    text = (
        "modules:\n  post_trainer:\n    framework: megatron\n    model: qwen3_8B.yaml\n"
        "    overrides:\n      tensor_model_parallel_size: 1\n      micro_batch_size: 1\n"
        "      lora: {enabled: true, dim: 32}\n"
    )
    assert read(tmp_path, "d.yaml", text).model.lora_rank == 32
    assert read(tmp_path, "e.yaml", text.replace("true", "false")).model.lora_rank is None
    command = "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.lora_adapter_path=a\n"
    run = read(tmp_path, "f.sh", command)
    assert "actor_rollout_ref.model.lora_adapter_path" in [one.option for one in run.unresolved]
    text = (
        "model: {model_config: {num_hidden_layers: 2}, use_lora: true}\n"
        "parallelism: {dp: 1, tp: 1, pp: 1}\ntokens: {micro_batch_size: 1, sequence_length: 8}\n"
    )
    assert "model.use_lora" in [one.option for one in read(tmp_path, "g.yaml", text).unresolved]


@pytest.mark.parametrize(
    "command",
    [
        "swift app --model Qwen/Qwen3-8B --max_length 2048",
        "swift infer --model Qwen/Qwen3-8B --max_length 2048 --lora_rank 8",
        "llamafactory-cli export --model_name_or_path Qwen/Qwen3-8B --cutoff_len 512",
    ],
)
def test_commands_that_do_not_train_are_no_runs(tmp_path: Path, command: str) -> None:
    with pytest.raises(DocumentError, match="no configuration of a known framework"):
        read(tmp_path, "a.sh", f"{command}\n")


def test_overrides_of_a_recipe_that_no_reader_takes_are_named(tmp_path: Path) -> None:
    command = "torchrun --nproc_per_node 8 scripts/training/run_recipe.py --recipe a_sft_config"
    words = "model.tensor_model_parallel_size=2 model.num_layers_in_first_pipeline_stage=12"
    run = read(tmp_path, "a.sh", f"{command} {words}\n")
    assert [one.option for one in run.unused] == ["model.num_layers_in_first_pipeline_stage"]


def test_a_program_with_arguments_is_no_configuration(tmp_path: Path) -> None:
    text = (
        "import argparse\nfrom megatron.bridge.training.config import ConfigContainer\n\n"
        "def parse():\n    parser = argparse.ArgumentParser()\n"
        '    parser.add_argument("--tp-size", default=2)\n    return parser.parse_args()\n\n'
        "def build(args):\n    return make(tensor_parallel=args.tp_size, num_layers=4)\n\n"
        "def step(args):\n    return make(hidden_size=4)\n"
    )
    path = tmp_path / "a.py"
    path.write_text(text.replace("num_layers=4", "layers=4").replace("hidden_size=4", "width=4"))
    with pytest.raises(DocumentError, match="no configuration of a known framework"):
        read_config(path)


def test_a_program_that_changes_a_recipe_and_starts_it(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(
        "from megatron.bridge.recipes.llama import llama31_70b_pretrain_config\n"
        "from megatron.bridge.training.pretrain import pretrain\n\ndef main() -> None:\n"
        "    config = llama31_70b_pretrain_config()\n"
        "    config.model.tensor_model_parallel_size = 4\n    pretrain(config=config)\n\n"
        'if __name__ == "__main__":\n    main()\n'
    )
    run = read_config(path)
    assert (run.framework, run.tp, "pp" in run.defaults) == ("megatron-bridge", 4, False)
    assert [one.option for one in run.unresolved] == ["llama31_70b_pretrain_config"]


def test_a_program_with_some_of_megatron_s_options_is_none_of_its(tmp_path: Path) -> None:
    options = "--micro-batch-size 4 --global-batch-size 96 --train-iters 9 --lr 1 --clip-grad 1"
    command = f"torchrun --nproc_per_node 8 training_llava.py {options} --log-interval 1"
    with pytest.raises(DocumentError, match="no configuration of a known framework"):
        read(tmp_path, "a.sh", f"{command} --adam-beta1 0.9 --lr-warmup-iters 3\n")


def test_a_batch_of_axolotl_is_that_of_a_device(tmp_path: Path) -> None:
    text = "base_model: Qwen/Qwen3-8B\ndatasets: [{path: a}]\nmicro_batch_size: 1\nbatch_size: 2\n"
    assert read(tmp_path, "a.yml", text).gradient_accumulation == 2


def test_one_slice_unless_the_command_names_more(tmp_path: Path) -> None:
    (tmp_path / "base.yml").write_text("dcn_data_parallelism: -1\nici_fsdp_parallelism: -1\n")
    words = "ici_fsdp_parallelism=8 per_device_batch_size=2 max_target_length=512"
    command = f"python3 -m maxtext.trainers.pre_train.train base.yml {words}"
    assert read(tmp_path, "a.sh", f"{command}\n").devices == 8
    assert read(tmp_path, "b.sh", f"{command} dcn_data_parallelism=-1\n").devices is None


def test_a_benchmark_by_its_variable(tmp_path: Path) -> None:
    path = tmp_path / "maxtext_trillium_model_configs.py"
    path.write_text(REGISTRY)
    assert read_config(f"{path}:small").seq_len == 4096


def test_degrees_that_nemo_s_program_fills_in_are_open(tmp_path: Path) -> None:
    text = (
        "trainer: {devices: 1, precision: 32}\ntensor_model_parallel_size: -1\n"
        "pipeline_model_parallel_size: -1\n"
    )
    run = read(tmp_path, "a.yaml", text)
    assert (run.framework, run.tp, run.pp, run.devices_per_node) == ("nemo", None, None, 1)
    assert not {"tp", "pp"} & run.defaults.keys()


FACTORY = (
    "model_name_or_path: {model}\nstage: sft\nfinetuning_type: full\ncutoff_len: 2048\n"
    "per_device_train_batch_size: 1\ngradient_accumulation_steps: 3\nbf16: true\noutput_dir: out\n"
)


@pytest.mark.parametrize(
    ("model", "layers", "source"),
    [
        ("zai-org/GLM-4.7-Flash", None, ""),
        # Llama 3.1 8B trained further; DeepSeek-R1 has 61 layers.
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", 32, "Llama 3 8B"),
    ],
)
def test_a_smaller_model_of_a_family_has_no_figures_of_the_large_one(
    tmp_path: Path, model: str, layers: int | None, source: str
) -> None:
    named = read(tmp_path, "a.yaml", FACTORY.format(model=model)).model
    assert (named.name, named.num_layers) == (model, layers)
    assert named.figures_of.startswith(source)
    assert bool(named.figures_of) is bool(source)


def test_batches_and_lengths_without_a_reader_are_named(tmp_path: Path) -> None:
    text = FACTORY.format(model="Qwen/Qwen3-8B") + "global_batch_size: 96\neval_batch_size: 2\n"
    run = read(tmp_path, "a.yaml", text)
    assert run.global_batch is None
    assert [each.option for each in run.unused] == ["global_batch_size"]


@pytest.mark.parametrize(
    ("written", "flash"), [("eager", False), ("flash_attn", True), ("a-b/vllm-flash-attn3", True)]
)
def test_ms_swift_names_its_attention(tmp_path: Path, written: str, flash: bool) -> None:
    command = f"swift sft --model Qwen/Qwen3-8B --tuner_type full --attn_impl {written}\n"
    assert read(tmp_path, "a.sh", command).flash_attention is flash


def test_an_encoder_with_a_decoder_has_no_number_of_layers(tmp_path: Path) -> None:
    layers = "--encoder-num-layers 12 --decoder-num-layers 6"
    run = read(tmp_path, "a.sh", f"{MEGATRON} {layers} --attention-backend unfused\n")
    assert (run.model.num_layers, run.flash_attention) == (None, False)
    assert [each.option for each in run.unresolved] == ["--decoder-num-layers"]


def test_a_program_with_its_own_loop_has_no_defaults_of_the_trainer(tmp_path: Path) -> None:
    command = (
        "torchrun --nproc_per_node 2 finetune.py --model_name_or_path Qwen/Qwen3-0.6B "
        "--per_device_train_batch_size 1 --gradient_accumulation_steps 4 --max_seq_length 1024 "
        "--learning_rate 1e-5"
    )
    run = read(tmp_path, "a.sh", f"{command} --num_epochs 2 --with_tracking\n")
    assert "precision" not in run.defaults
    assert run.micro_batch == 1
    assert [each.option for each in run.unresolved] == ["finetune.py"]
    assert "precision" in read(tmp_path, "b.sh", f"{command} --num_train_epochs 2\n").defaults


def test_passes_follow_from_the_batch_and_not_from_a_default(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(
        '{"train_batch_size": 256, "train_micro_batch_size_per_gpu": 1, "fp16": {"enabled": true}}'
    )
    command = MEGATRON.replace("torchrun --nproc_per_node 8", "deepspeed")
    run = read(tmp_path, "a.sh", f"{command} --deepspeed --deepspeed_config ds.json\n")
    assert (run.global_batch, run.micro_batch, run.devices) == (256, 1, None)
    assert run.answer("gradient_accumulation") is None


def test_deepspeed_chat_names_its_actor(tmp_path: Path) -> None:
    command = (
        "deepspeed --num_gpus 1 main.py --actor_model_name_or_path facebook/opt-6.7b "
        "--per_device_training_batch_size 8 --gradient_accumulation_steps 16 --actor_zero_stage 2 "
        "--max_answer_seq_len 256 --max_prompt_seq_len 128 --actor_gradient_checkpointing "
        "--lr_scheduler_type cosine --output_dir out --actor_lora_dim 16 --deepspeed"
    )
    run = read(tmp_path, "a.sh", f"{command}\n")
    assert (run.micro_batch, run.zero_stage, run.seq_len) == (8, 2, 384)
    assert (run.recompute, run.model.lora_rank) == ("full", 16)
    assert any("only the trained policy" in each.why for each in run.unresolved)


def test_preferences_are_named_by_the_weight_of_their_loss(tmp_path: Path) -> None:
    text = (
        "model_name_or_path: Qwen/Qwen3-8B\nper_device_train_batch_size: 2\noutput_dir: out\n"
        "learning_rate: 1.0e-6\nmax_length: 1024\nbeta: 0.1\n"
    )
    assert [each.option for each in read(tmp_path, "a.yaml", text).unresolved] == ["beta"]


def test_a_file_that_only_imports_configurations_lists_them(tmp_path: Path) -> None:
    recipe = (
        "from megatron.bridge.training.config import ConfigContainer\n"
        "def {}(cfg=ConfigContainer()):\n"
        "    cfg.model.tensor_model_parallel_size = {}\n    return cfg\n"
    )
    (tmp_path / "sizes.py").write_text(recipe.format("small", 2) + recipe.format("large", 8))
    run = read(tmp_path, "one.py", "from .sizes import large as old_name\n")
    assert (run.framework, run.tp) == ("megatron-bridge", 8)
    both = read(tmp_path, "both.py", "from .sizes import large\nfrom .sizes import small\n")
    assert both.tp is None
    assert "several: large, small" in both.unresolved[0].why


def test_a_file_that_changes_one_of_nemo_rl_without_a_policy(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(
        "policy:\n  train_micro_batch_size: 2\n  dtensor_cfg: {enabled: true}\n"
        "on_policy_distillation:\n  non_colocated_teachers: {enabled: true}\n"
        "cluster: {num_nodes: 4, gpus_per_node: 8}\n"
    )
    run = read(tmp_path, "a.yaml", "defaults: base.yaml\ndata_plane: {enabled: true}\n")
    assert (run.framework, run.micro_batch, run.devices) == ("nemo-rl", 2, None)
    assert any("teachers have devices" in each.why for each in run.unresolved)


def test_the_second_form_of_llama_factory_names_partial_training(tmp_path: Path) -> None:
    text = (
        "model: Qwen/Qwen3-4B\nmodel_class: llm\ncutoff_len: 2048\nmicro_batch_size: 1\n"
        "kernel_config: {name: auto}\npeft_config: {name: freeze}\n"
    )
    run = read(tmp_path, "a.yaml", text)
    assert [each.option for each in run.unresolved] == ["peft_config.name"]


def test_a_program_without_the_trainer_says_so_in_its_name(tmp_path: Path) -> None:
    command = (
        "accelerate launch --num_processes 2 run_clm_no_trainer.py --model_name_or_path gpt2 "
        "--per_device_train_batch_size 8 --learning_rate 1e-5 --output_dir out\n"
    )
    assert "precision" not in read(tmp_path, "a.sh", command).defaults


def test_sequence_parallelism_of_megatron_deepspeed_is_of_contexts(tmp_path: Path) -> None:
    assert read(tmp_path, "a.sh", f"{MEGATRON} --ds-sequence-parallel-size 2\n").cp == 2


def test_a_section_that_is_switched_on_is_named(tmp_path: Path) -> None:
    section = "actor_rollout_ref.actor.megatron"
    words = (
        f"{section}.tensor_model_parallel_size=2 {section}.qat.enable=True "
        "actor_rollout_ref.model.mtp.enable=True"
    )
    run = read(tmp_path, "a.sh", f"python3 -m verl.trainer.main_ppo {words}\n")
    assert run.defaults["optimizer"].value == "adam"
    assert [each.option.rpartition("model.")[2] for each in run.unused] == [
        f"{section}.qat.enable",
        "mtp.enable",
    ]


def test_the_hosts_of_a_file_are_not_one_node(tmp_path: Path) -> None:
    command = MEGATRON.replace("torchrun --nproc_per_node 8", "deepspeed") + " --deepspeed"
    assert read(tmp_path, "a.sh", f"{command}\n").answer("nodes") == 1
    ranks = "N=$(ds_ssh nvidia-smi --query-gpu=name | wc -l)\n"
    assert read(tmp_path, "b.sh", f"{ranks}{command} --seed $N\n").answer("nodes") is None


def test_openrlhf_names_its_attention(tmp_path: Path) -> None:
    command = "deepspeed --module openrlhf.cli.train_sft --ds.attn_implementation flash_attention_2"
    assert read(tmp_path, "a.sh", f"{command} --train.batch_size 8\n").flash_attention


EASYR1 = """data: {train_files: a, max_prompt_length: 2048, max_response_length: 1024}
worker:
  actor:
    global_batch_size: 128
    micro_batch_size_per_device_for_update: 1
    dynamic_batching: false
    ulysses_size: 2
    model: {model_path: Qwen/Qwen3-8B, enable_gradient_checkpointing: true}
    optim: {strategy: adamw}
    fsdp: {enable_full_shard: true, fsdp_size: -1}
    offload: {offload_optimizer: true}
  rollout: {n: 5, tensor_parallel_size: 4}
  ref: {fsdp: {enable_cpu_offload: true}}
trainer: {nnodes: 1, n_gpus_per_node: 8}
"""


def test_easyr1_names_the_actor_in_its_own_way(tmp_path: Path) -> None:
    (tmp_path / "easy.yaml").write_text(EASYR1)
    words = "worker.actor.optim.strategy=adamw_bf16 trainer.n_gpus_per_node=4"
    for run in (
        read(tmp_path, "a.sh", f"python3 -m verl.trainer.main config=easy.yaml {words}\n"),
        read_config(tmp_path / "easy.yaml"),
    ):
        by_command = "a.sh" in str(run.options)
        assert (run.framework, run.devices, run.cp) == ("verl", 4 if by_command else 8, 2)
        assert (run.micro_batch, run.global_batch, run.seq_len) == (1, 640, 3072)
        assert run.optimizer == ("adamw_bf16" if by_command else "adamw")
        assert (run.tp, run.defaults["tp"].value, run.model.num_layers) == (None, 1, 36)
        assert (run.recompute, run.answer("zero_stage"), run.optimizer_offload) == ("full", 3, None)
    run = read(tmp_path, "b.sh", "python3 -m verl.trainer.main config=no.yaml worker.actor.x=1\n")
    assert (run.global_batch, "micro_batch" in run.defaults) == (None, False)
    assert [each.option for each in run.unresolved] == ["config"]


def test_an_argument_compared_with_an_empty_text_is_empty(tmp_path: Path) -> None:
    script = 'STAGE=$2\nif [ "$STAGE" == "" ]; then\n  STAGE=3\nfi\n'
    command = "deepspeed --num_gpus 8 train.py --deepspeed --max_seq_len 512 --zero_stage $STAGE"
    run = read(tmp_path, "a.sh", f"{script}{command} --per_device_train_batch_size 4\n")
    assert run.zero_stage == 3
    script = script.replace("==", "!=")
    run = read(tmp_path, "b.sh", f"{script}{command} --per_device_train_batch_size 4\n")
    assert (run.zero_stage, "--zero_stage" in {each.option for each in run.unresolved}) == (
        None,
        True,
    )


def test_options_of_xpk_may_follow_its_command(tmp_path: Path) -> None:
    train = "python3 -m maxtext.train base.yml per_device_batch_size=8 max_target_length=2048"
    options = (
        f'ARGS=(\n  --command "{train} enable_diloco=true dcn_diloco_parallelism=2"\n'
        '  --num-slices "${NUM_SLICES:-2}"\n  --tpu-type "v5p-128"\n)\n'
    )
    run = read(tmp_path, "a.sh", f'{options}xpk workload create "${{ARGS[@]}}"\n')
    assert (run.device, run.devices, run.micro_batch) == ("tpu-v5p", 128, 8)


def test_flags_of_maxtext_that_no_value_comes_from_are_listed(tmp_path: Path) -> None:
    words = "ici_fsdp_transpose_parallelism=1 dcn_diloco_parallelism=2 capacity_factor=1.25"
    command = (
        f"python3 -m maxtext.train base.yml per_device_batch_size=8 max_target_length=2048 {words}"
    )
    run = read(tmp_path, "a.sh", f"{command} ici_tensor_transpose_parallelism=2\n")
    assert {each.option for each in run.unused} == {
        "capacity_factor", "dcn_diloco_parallelism", "ici_tensor_transpose_parallelism"
    }  # fmt: skip


def test_a_batch_per_core_of_a_tpu_is_shown_as_the_chip_s(tmp_path: Path) -> None:
    train = "python3 -m maxtext.train base.yml per_device_batch_size=16 max_target_length=4096"
    run = read(
        tmp_path, "a.sh", f'xpk workload create --tpu-type=tpu7x-4x4x4 --command="{train}"\n'
    )
    assert (run.devices, run.micro_batch, run.global_batch) == (64, 32, 2048)
    assert run.derived["micro_batch"].startswith("per_device_batch_size 16 x 2 cores")


def test_parts_of_the_weights_that_axolotl_trains_are_listed(tmp_path: Path) -> None:
    text = (
        "base_model: Qwen/Qwen3-8B\ndatasets: [{path: a, type: alpaca}]\nbf16: true\n"
        "sequence_len: 512\nmicro_batch_size: 1\nunfrozen_parameters: [^lm_head.weight$]\n"
    )
    assert [each.option for each in read(tmp_path, "a.yaml", text).unused] == [
        "unfrozen_parameters"
    ]


def test_torchtune_quantizes_the_frozen_weights_of_qlora(tmp_path: Path) -> None:
    text = (
        "model:\n  _component_: torchtune.models.llama3_1.qlora_llama3_1_8b\n  lora_rank: 8\n"
        "batch_size: 2\ndtype: bf16\n"
    )
    run = read(tmp_path, "a.yaml", text)
    assert (run.base_precision, run.model.lora_rank, run.model.num_layers) == ("nf4", 8, 32)
    text = text.replace(".qlora_", ".lora_").replace("rank: 8", "rank: 8\n  quantize_base: True")
    assert read(tmp_path, "b.yaml", text).base_precision == "nf4"


def test_llama_factory_s_ray_workers_are_devices(tmp_path: Path) -> None:
    text = (
        "model_name_or_path: Qwen/Qwen3-4B\nstage: sft\nfinetuning_type: lora\ncutoff_len: 2048\n"
        "ray_num_workers: 4\nper_device_train_batch_size: 1\ngradient_accumulation_steps: 8\n"
    )
    run = read(tmp_path, "a.yaml", text)
    assert (run.devices, run.global_batch) == (4, 32)


def test_tables_of_a_command_line_have_their_keys(tmp_path: Path) -> None:
    words = "'actor_rollout_ref.actor.megatron={tensor_model_parallel_size: 4, pp:2}'"
    command = f"python3 -m verl.trainer.main_ppo --config-name=ppo_megatron_trainer {words}"
    run = read(tmp_path, "a.sh", f"{command} trainer.n_gpus_per_node=8 trainer.nnodes=2\n")
    assert (run.tp, run.pp, run.dp) == (4, 2, 2)
    table = '"model={tensor_model_parallel_size: 2, seq_length: 4096}"'
    command = f"torchrun --nproc_per_node 8 train.py --recipe a trainer.num_nodes=1 {table}"
    run = read(tmp_path, "b.sh", f"{command} model.pipeline_model_parallel_size=2\n")
    assert (run.tp, run.pp, run.seq_len) == (2, 2, 4096)
    table = '"model={tensor_model_parallel_size: [2}"'
    run = read(tmp_path, "c.sh", f"{command} {table} model.pipeline_model_parallel_size=2\n")
    assert [each.option for each in run.unresolved] == ["model"]


@pytest.mark.parametrize("test", ['[[ "$1" != "" ]]', "[ $# -gt 0 ]", "[[ $# -ne 0 ]]"])
def test_a_loop_over_arguments_does_not_run_without_them(tmp_path: Path, test: str) -> None:
    script = (
        f"TP=4\nwhile {test}; do\n  case $1 in\n    --tp) shift; TP=$1 ;;\n    *) exit 1 ;;\n"
        f"  esac\n  shift\ndone\n{MEGATRON.rpartition(' ')[0]} $TP\n"
    )
    run = read(tmp_path, "a.sh", script)
    assert (run.tp, run.unresolved) == (4, ())


def test_a_script_that_needs_arguments_is_read_on(tmp_path: Path) -> None:
    script = f"if [ $# -lt 2 ]; then\n  echo usage\n  exit 1\nfi\n{MEGATRON}\n"
    assert read(tmp_path, "a.sh", script).tp == 2


def test_torchrun_starts_a_written_script_in_each_rank(tmp_path: Path) -> None:
    script = (
        "worker=$(cat <<- EOM\n  nice -10 \\\n  python scripts/performance/run_script.py "
        "--model_recipe_name gpt_oss_120b --gpu gb300 --num_gpus 512 --gpus_per_node 4 "
        "--compute_dtype fp8_mx --seq_length 4096 --tensor_model_parallel_size 1 "
        '--expert_model_parallel_size 64\nEOM\n)\necho "$worker" > worker.sh\n'
        "torchrun --nproc-per-node=4 --nnodes=128 --no-python bash worker.sh\n"
    )
    run = read(tmp_path, "a.sh", script)
    assert (run.framework, run.devices, run.tp, run.ep) == ("megatron-bridge", 512, 1, 64)
    assert (run.precision, run.seq_len, run.contradictions) == ("mxfp8", 4096, ())


def test_internvl_names_adapters_and_recomputation(tmp_path: Path) -> None:
    command = (
        "torchrun --nproc_per_node 2 internvl_chat_finetune.py --model_name_or_path a/b "
        "--per_device_train_batch_size 2 --gradient_accumulation_steps 4 --use_llm_lora 16 "
        "--grad_checkpoint True --max_seq_length 4096 --bf16 True --output_dir c"
    )
    run = read(tmp_path, "a.sh", command)
    assert (run.model.lora_rank, run.recompute, run.seq_len) == (16, "full", 4096)


def test_the_encoder_of_images_is_listed(tmp_path: Path) -> None:
    command = (
        "deepspeed train_mem.py --model_name_or_path lmsys/vicuna-13b-v1.5 --output_dir a "
        "--per_device_train_batch_size 2 --vision_tower openai/clip-vit-large-patch14-336"
    )
    run = read(tmp_path, "a.sh", f"{command} --q_lora True --bf16 True\n")
    assert {each.option for each in run.unused} == {"vision_tower", "q_lora"}


def test_degrees_of_a_reference_are_not_the_policy_s(tmp_path: Path) -> None:
    degrees = "{tensor_model_parallel_size: 1, pipeline_model_parallel_size: %d}"
    text = (
        f"actor_train:\n  strategy_args:\n    strategy_config: {degrees % 2}\n"
        f"reference:\n  strategy_args:\n    strategy_config: {degrees % 1}\n"
    )
    run = read(tmp_path, "a.yaml", text)
    assert (run.tp, run.pp, run.contradictions) == (1, 2, ())
    words = [
        "trainer.placement.policy_num_nodes=2 trainer.placement.policy_num_gpus_per_node=8",
        "trainer.policy.megatron_config.tensor_model_parallel_size=2",
        "trainer.policy.megatron_config.pipeline_model_parallel_size=2",
        "trainer.ref.megatron_config.tensor_model_parallel_size=1",
    ]
    run = read(tmp_path, "a.sh", f"python -m skyrl.train.entrypoints.main_base {' '.join(words)}\n")
    assert (run.devices, run.tp, run.pp, run.contradictions) == (16, 2, 2, ())


def test_a_section_named_training_is_not_torchtitan_s_alone(tmp_path: Path) -> None:
    words = "--training.per_device_train_batch_size 1 --training.output_dir a --parallel.ep_size 2"
    with pytest.raises(DocumentError, match="which is of none"):
        read(tmp_path, "a.sh", f"torchrun --nproc_per_node 8 train_fsdp2.py {words}\n")
    words = "--training.local_batch_size 1 --parallelism.tensor_parallel_degree 2"
    run = read(tmp_path, "b.sh", f"torchrun --nproc_per_node 8 train.py {words}\n")
    assert (run.framework, run.tp) == ("torchtitan", 2)


def test_vocabularies_of_flagscale_and_bigscience(tmp_path: Path) -> None:
    assert read(tmp_path, "a.sh", f"{MEGATRON} --pad-vocab-size-to 512\n").model.vocab_size == 512
    text = (
        "system: {tensor_model_parallel_size: 8, pipeline_model_parallel_size: 4}\n"
        "model: {num_layers: 80, micro_batch_size: 1}\ndata: {tokenizer: {vocab_size: 128256}}\n"
    )
    assert read(tmp_path, "a.yaml", text).model.vocab_size == 128256


def test_files_of_ms_swift_s_arguments_are_no_trainer_s(tmp_path: Path) -> None:
    text = (
        "model: Qwen/Qwen3-8B\ntuner_type: lora\ntorch_dtype: bfloat16\nlearning_rate: 1e-4\n"
        "num_train_epochs: 5\nper_device_train_batch_size: 1\ndeepspeed: zero3\nsave_steps: 9\n"
    )
    run = read(tmp_path, "a.yaml", text)
    assert (run.framework, run.model.lora_rank, run.zero_stage) == ("ms-swift", 8, 3)
    assert (run.devices, run.precision, run.defaults["recompute"].value) == (None, "bf16", "full")
    text = (
        "model: Qwen/Qwen3-30B-A3B\ntuner_type: lora\nlora_rank: 16\nmicro_batch_size: 1\n"
        "global_batch_size: 4\nmax_length: 2048\nexpert_model_parallel_size: 4\noutput_dir: a\n"
        "num_train_epochs: 1\nsave_steps: 200\nrecompute_granularity: full\n"
    )
    run = read(tmp_path, "b.yaml", text)
    assert (run.framework, run.ep, run.recompute, run.global_batch) == ("ms-swift", 4, "full", 4)
    assert (run.model.lora_rank, run.defaults["precision"].value) == (16, "bf16")


def test_a_file_without_a_trainer_s_model_or_batch_is_none_of_it(tmp_path: Path) -> None:
    text = (
        "output_dir: a\nmax_steps: 9\nsave_steps: 9\nlogging_steps: 1\n"
        "actor_train: {training_args: {per_device_train_batch_size: 1}}\n"
    )
    with pytest.raises(DocumentError, match="no configuration of a known framework"):
        read(tmp_path, "a.yaml", text)


def test_flagscale_s_services_are_no_runs(tmp_path: Path) -> None:
    text = (
        "experiment:\n  task: {type: TYPE}\n  runner: {nnodes: 2, nproc_per_node: 4}\n"
        "system: {tensor_model_parallel_size: 2, pipeline_model_parallel_size: 1}\n"
    )
    assert read(tmp_path, "a.yaml", text.replace("TYPE", "train")).devices == 8
    with pytest.raises(DocumentError, match="no configuration of a known framework"):
        read(tmp_path, "b.yaml", text.replace("TYPE", "serve"))


def test_gradients_of_primus_in_bf16(tmp_path: Path) -> None:
    text = (
        "modules:\n  pre_trainer:\n    framework: megatron\n    model: qwen3_8B.yaml\n"
        "    overrides:\n      tensor_model_parallel_size: 1\n      grad_reduce_in_bf16: true\n"
    )
    assert read(tmp_path, "a.yaml", text).gradient_reduction == "bf16"


def test_a_folder_with_the_name_of_a_script_is_none(tmp_path: Path) -> None:
    (tmp_path / "fetch.sh").mkdir()
    text = AUTOMODEL.replace("NAME", "nobody/unknown")
    assert read(tmp_path, "a.yaml", text).pp == 4


def test_options_of_automodel_replace_values_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(AUTOMODEL.replace("NAME", "meta-llama/Llama-3.1-8B"))
    words = "--step_scheduler.global_batch_size 32 --distributed.tp_size=2 --distributed.pp_size $N"
    command = f"torchrun --nproc_per_node 8 finetune.py --config a.yaml {words}"
    run = read(tmp_path, "a.sh", f"{command} --step_scheduler.local_batch_size 4\n")
    assert (run.framework, run.global_batch, run.tp, run.pp) == ("automodel", 32, 2, None)
    assert "pp" not in run.defaults
    assert run.options["global_batch"] == "step_scheduler.global_batch_size (a.sh:1)"
    assert "step_scheduler.global_batch_size: 32 (a.sh:1)" in run.overridden[0].text
    assert not [each for each in run.unused if each.place == "a.sh:1"]


def test_options_of_olmo_replace_values_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "model: {d_model: 64, n_layers: 2, n_heads: 4, max_sequence_length: 4096}\n"
        "global_train_batch_size: 64\ndevice_train_microbatch_size: 2\nprecision: amp_bf16\n"
        "fsdp: {sharding_strategy: FULL_SHARD}\nmax_duration: 2T\n"
    )
    words = "--device_train_microbatch_size=1 --fsdp.sharding_strategy=SHARD_GRAD_OP --run_name=a"
    run = read(tmp_path, "a.sh", f"torchrun --nproc_per_node 8 scripts/train.py a.yaml {words}\n")
    assert (run.micro_batch, run.zero_stage, run.global_batch) == (1, 2, 64)


def test_data_alone_is_no_configuration_of_verl(tmp_path: Path) -> None:
    text = "model: {name: Qwen/Qwen3-8B, lora_rank: 32}\ndata: {train_files: a, max_length: 9}\n"
    with pytest.raises(DocumentError, match="no configuration of a known framework"):
        read(tmp_path, "a.yaml", text)


def test_nemo_s_keys_are_no_options_of_megatron(tmp_path: Path) -> None:
    text = (
        "MODEL_ARGS:\n  trainer.strategy.tensor_model_parallel_size: 2\n  trainer.devices: 8\n"
        "  data.micro_batch_size: 2\n"
    )
    with pytest.raises(DocumentError, match="no configuration of a known framework"):
        read(tmp_path, "model_config.yaml", text)


def test_adapters_of_verl_on_megatron(tmp_path: Path) -> None:
    words = "actor_rollout_ref.model.lora.rank=32 actor_rollout_ref.model.path=Qwen/Qwen3-4B"
    command = f"python3 -m verl.trainer.main_ppo {words} trainer.n_gpus_per_node=8"
    run = read(tmp_path, "a.sh", f"{command} actor_rollout_ref.actor.strategy=megatron\n")
    assert run.model.lora_rank == 32
    run = read(tmp_path, "b.sh", f"{command} actor_rollout_ref.actor.strategy=fsdp\n")
    assert run.model.lora_rank is None
    assert "actor_rollout_ref.model.lora.rank" in [each.option for each in run.unresolved]


def test_layers_that_lisa_trains_are_listed(tmp_path: Path) -> None:
    command = "python finetune.py --model_name_or_path a/b --per_device_train_batch_size 1"
    run = read(tmp_path, "a.sh", f"{command} --output_dir c --bf16 --use_lisa 1\n")
    assert [each.option for each in run.unused] == ["use_lisa"]


def test_nemo_s_launcher_without_values_is_read(tmp_path: Path) -> None:
    command = "python3 /opt/launcher_scripts/main.py training=mixtral/mixtral_8x7b"
    run = read(tmp_path, "a.sh", f"{command} stages=[training] training.run.name=a\n")
    assert (run.framework, run.tp, "tp" in run.defaults) == ("nemo", None, False)


def test_arguments_behind_shifted_ones_are_passed_on(tmp_path: Path) -> None:
    script = (
        'run() {\n  local gpus="$2"\n  shift 2\n'
        f'  {MEGATRON.rpartition(" ")[0]} $gpus "$@"\n}}\n'
        "run name 4 --pipeline-model-parallel-size 2 --bf16\n"
    )
    run = read(tmp_path, "a.sh", script)
    assert (run.tp, run.pp, run.precision) == (4, 2, "bf16")


def test_colossalai_s_mixture_of_experts(tmp_path: Path) -> None:
    words = "--plugin hybrid --zero_stage 1 --pp_size 2 --ep_size 8 --batch_size 1"
    command = f"colossalai run --nproc_per_node 8 train.py --model_name a/b {words}"
    run = read(tmp_path, "a.sh", command)
    assert (run.pp, run.ep, run.zero_stage, run.model.name) == (2, 8, 1, "a/b")


def test_olmo_core_s_python_is_refused_by_name(tmp_path: Path) -> None:
    text = "from olmo_core.nn.transformer import TransformerConfig\n\nLENGTH = 4096\n"
    with pytest.raises(DocumentError, match="OLMo-core's configurations in Python are not read"):
        read(tmp_path, "a.py", text)


def test_a_program_with_a_stage_among_its_options_is_no_trainer_s(tmp_path: Path) -> None:
    words = "--model_name_or_path a/b --gradient_accumulation_steps 4 --output_dir c --deepspeed"
    run = read(tmp_path, "a.sh", f"deepspeed --num_gpus 1 main.py {words} --zero_stage 2\n")
    assert (run.zero_stage, run.devices, run.micro_batch) == (2, 1, None)
    assert not {"micro_batch", "precision"} & run.defaults.keys()
    assert [each.option for each in run.unresolved] == ["main.py"]


def test_torchtune_s_file_for_one_device(tmp_path: Path) -> None:
    text = (
        "model: {_component_: torchtune.models.llama3_2.lora_llama3_2_1b, lora_rank: 8}\n"
        "batch_size: 4\ngradient_accumulation_steps: 8\ndtype: bf16\n"
    )
    run = read(tmp_path, "1B_lora_single_device.yaml", text)
    assert (run.devices, run.dp, run.global_batch) == (1, 1, 32)
    assert read(tmp_path, "1B_lora.yaml", text).devices is None


def test_ulysses_of_accelerate_is_context_parallel(tmp_path: Path) -> None:
    text = (
        "distributed_type: DEEPSPEED\nnum_processes: 8\nmixed_precision: bf16\n"
        "deepspeed_config: {zero_stage: 3}\nparallelism_config:\n"
        "  parallelism_config_cp_size: 1\n  parallelism_config_sp_size: 4\n"
        "  parallelism_config_dp_shard_size: 2\n"
    )
    run = read(tmp_path, "a.yaml", text)
    assert (run.cp, run.dp, run.devices, run.contradictions) == (4, 2, 8, ())


@pytest.mark.parametrize("modules", ["mlp moe", "mlp,moe", "'[mlp moe]'", "'[moe, mlp]'"])
def test_recomputed_modules_of_megatron_in_brackets(tmp_path: Path, modules: str) -> None:
    words = f"--recompute-granularity selective --recompute-modules {modules}"
    assert read(tmp_path, "a.sh", f"{MEGATRON} {words}").recompute == "selective modules: mlp,moe"


def test_layers_of_gemma_2_are_pairs_in_maxtext(tmp_path: Path) -> None:
    text = (
        "base_num_decoder_layers: 3\nbase_emb_dim: 64\ndecoder_block: {}\nsteps: 1\n"
        "max_target_length: 128\nper_device_batch_size: 1\n"
    )
    assert read(tmp_path, "a.yml", text.format("gemma2")).model.num_layers == 6
    assert read(tmp_path, "b.yml", text.format("llama2")).model.num_layers == 3


def test_a_command_behind_others_of_a_submitted_job(tmp_path: Path) -> None:
    words = (
        "--model_name_or_path a/b --per_device_train_batch_size 1 --deepspeed_stage 3 "
        "--output_dir c --num_learners_per_node 8 4 --sequence_parallel_size 2 --pack_length 4096"
    )
    job = "python mason.py --num_nodes 2 --gpus 8 -- source setup.sh \\&\\& python grpo_fast.py"
    run = read(tmp_path, "a.sh", f"{job} {words}\n")
    assert (run.devices, run.cp, run.seq_len, run.zero_stage) == (12, 2, 4096, 3)
    assert "grpo_fast.py" in [each.option for each in run.unresolved]


def test_a_program_s_own_names_of_its_model_and_recomputation(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 3}, "train_batch_size": 4}')
    words = "--model_name Qwen/Qwen3-8B --activation_checkpointing --max_length 2048"
    command = "deepspeed --num_gpus=2 tune.py --deepspeed_config=ds.json"
    run = read(tmp_path, "a.sh", f"{command} {words}\n")
    assert (run.recompute, run.model.num_layers, run.seq_len) == ("full", 36, 2048)
    words = "--rlhf_type dpo --model Qwen/Qwen3-8B --model_name swift/robot --learning_rate 1e-5"
    run = read(tmp_path, "b.sh", f"NPROC_PER_NODE=2 swift rlhf {words}\n")
    assert (run.model.name, run.contradictions) == ("Qwen/Qwen3-8B", ())


def test_the_output_of_a_command_may_have_options(tmp_path: Path) -> None:
    words = "--model_name_or_path a/b --per_device_train_batch_size 1 --output_dir c"
    run = read(tmp_path, "a.sh", f"torchrun --nproc_per_node 8 train.py {words} $(print_options)\n")
    (found,) = run.unresolved
    assert (found.option, found.why.partition(",")[0]) == (
        "arguments",
        "the output of `print_options`",
    )
    assert (run.micro_batch, run.defaults.keys()) == (1, {"nodes"})
    for more in ("--graphs 1 2 $(seq 3 8)", "${@:2}"):
        run = read(tmp_path, "b.sh", f"torchrun --nproc_per_node 8 train.py {words} {more}\n")
        assert "arguments" not in [each.option for each in run.unresolved]


def test_overrides_that_filters_of_white_space_print(tmp_path: Path) -> None:
    script = (
        'TP=4\nMORE="model.tensor_model_parallel_size=$TP \\\n  train.micro_batch_size=2\n"\n'
        'CMD="python run_recipe.py --recipe llama3_8b_pretrain_config"\n'
        "CMD=\"$CMD $(echo \"$MORE\" | tr '\\n' ' ' | sed 's/  \\+/ /g')\"\n"
        'srun -N 2 bash -c "$CMD"\n'
    )
    run = read(tmp_path, "a.sh", script)
    assert (run.framework, run.tp, run.micro_batch) == ("megatron-bridge", 4, 2)


def test_a_section_with_a_configuration_is_read(tmp_path: Path) -> None:
    """A file of a tool that starts LLaMA-Factory, with the keys of its file in a section."""
    inner = "{model_name_or_path: Qwen/Qwen2.5-Math-1.5B, stage: sft, finetuning_type: full}\n"
    run = read(tmp_path, "a.yaml", f"slurm:\n  num_nodes: 2\ntraining: {inner}")
    assert (run.framework, run.model.num_layers, run.nodes) == ("llama-factory", 28, None)
    with pytest.raises(DocumentError, match="no configuration of a known framework"):
        read(tmp_path, "b.yaml", f"first: {inner}second: {inner}")


def test_a_fork_of_torchtitan_is_known_by_its_file_s_option(tmp_path: Path) -> None:
    words = "--job.config_file own.toml --training.shuffle_seed 5"
    run = read(tmp_path, "a.sh", f"torchrun --nnodes 2 --nproc_per_node 8 ./train.py {words}\n")
    assert (run.framework, run.devices, "tp" in run.defaults) == ("torchtitan", 16, False)


def test_switches_of_megatron_bridge_s_model(tmp_path: Path) -> None:
    text = (
        "mixed_precision: {}\nmodel: {{bf16: true, tensor_model_parallel_size: 1, "
        "pipeline_model_parallel_size: 1, num_layers: 2, override_vocab_size: 640}}\n"
    )
    run = read(tmp_path, "a.yaml", text.format("null"))
    assert (run.precision, run.model.vocab_size, run.unused) == ("bf16", 640, ())
    assert read(tmp_path, "b.yaml", text.format("fp16_mixed")).precision == "fp16"

# Form of https://github.com/pytorch/torchtitan torchtitan/models/llama3/config_registry.py (2026)
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.trainer import Trainer
from . import model_registry

SEQ = 8192

def llama3_8b() -> Trainer.Config:
    model_spec = model_registry("8B")
    return Trainer.Config(
        model_spec=model_spec,
        optimizer=default_adamw(lr=3e-4),
        training=TrainingConfig(
            num_tokens_per_microbatch_per_dp_rank=2 * SEQ,
            max_context_length=SEQ,
            steps=1000,
        ),
        activation_checkpoint=SelectiveAC.Config(),
    )

def llama3_8b_tp() -> Trainer.Config:
    config = llama3_8b()
    config.parallelism = ParallelismConfig(tensor_parallel_degree=2, data_parallel_shard_degree=4)
    config.activation_checkpoint = FullAC.Config()
    return config

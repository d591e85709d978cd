# Form of https://github.com/NVIDIA-NeMo/Megatron-Bridge src/megatron/bridge/perf_recipes/llama
from megatron.bridge.training.config import ConfigContainer

def llama3_70b_pretrain_config_b200() -> ConfigContainer:
    cfg = base_config()
    cfg.mixed_precision = precision("fp8_cs")
    cfg.model.tensor_model_parallel_size = 2
    cfg.model.pipeline_model_parallel_size = 4
    cfg.model.virtual_pipeline_model_parallel_size = 5
    cfg.model.context_parallel_size = 1
    cfg.model.sequence_parallel = True
    cfg.model.seq_length = 8192
    cfg.train.global_batch_size = 128
    cfg.train.micro_batch_size = 1
    cfg.ddp.use_distributed_optimizer = True
    if cfg.model.something:
        cfg.train.micro_batch_size = 2
    return cfg

# Form of https://github.com/NVIDIA/NeMo nemo/collections/llm/recipes/mixtral_8x7b.py
import nemo_run as run
from nemo import lightning as nl
from nemo.collections import llm

NODES = 8
LENGTH = 8192


def pretrain_recipe(name: str = "default", num_gpus_per_node: int = 8) -> run.Partial:
    return run.Partial(
        llm.pretrain,
        model=model(),
        trainer=run.Config(
            nl.Trainer,
            devices=num_gpus_per_node,
            num_nodes=NODES,
            strategy=run.Config(
                nl.MegatronStrategy,
                tensor_model_parallel_size=1,
                pipeline_model_parallel_size=4,
                virtual_pipeline_model_parallel_size=8,
                context_parallel_size=1,
                expert_model_parallel_size=8,
                sequence_parallel=False,
            ),
            plugins=bf16_mixed(),
        ),
        data=run.Config(llm.MockDataModule, seq_length=LENGTH, global_batch_size=512,
                        micro_batch_size=1),
    )

# Form of https://github.com/NVIDIA/NeMo docs, nemo-2.0/quickstart: a shipped recipe that is changed
import nemo_run as run
from nemo.collections import llm
from nemo.collections.llm.gpt.data.mock import MockDataModule


def custom_llama3_8b():
    recipe = llm.llama3_8b.pretrain_recipe(name="a", num_nodes=2, num_gpus_per_node=8)
    recipe.data = run.Config(MockDataModule, seq_length=8192, global_batch_size=512, micro_batch_size=1)
    recipe.trainer.strategy.context_parallel_size = 2
    return recipe

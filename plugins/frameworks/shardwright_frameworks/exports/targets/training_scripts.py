"""The short programs that accelerate, DeepSpeed and the Trainer run: a transformers model of the
folder's `config.json` on random tokens, with the settings of the folder's files."""

from __future__ import annotations

from profiles.document import to_json
from profiles.errors import InputError
from shardwright_frameworks.exports.values.exported import ExportedFile
from shardwright_frameworks.exports.values.planned_run import PlannedRun

_HEAD = '''"""{title} Tokens are random: replace `batches` by your data."""

import argparse
import json
import time
from pathlib import Path

import torch
{imports}
from transformers import AutoConfig, AutoModelForCausalLM

HERE = Path(__file__).parent
JOB = json.loads((HERE / "training.json").read_text())


def planned_model():
    config = AutoConfig.from_pretrained(HERE)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def batches(rank):
    size = (JOB["micro_batch"], JOB["seq_len"])
    source = torch.Generator().manual_seed(rank)
    while True:
        yield torch.randint(JOB["vocab_size"], size, generator=source)

'''

_ACCELERATE = (
    _HEAD
    + """
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=JOB["steps"])
    steps = parser.parse_args().steps
    accelerator = Accelerator(
        gradient_accumulation_steps=JOB["gradient_accumulation_steps"]
    )
    model = planned_model()
    if JOB["gradient_checkpointing"]:
        model.gradient_checkpointing_enable()
    # FSDP2 takes model and optimizer together.
    model, optimizer = accelerator.prepare(
        model, torch.optim.AdamW(model.parameters(), lr=3e-4)
    )
    weights = [getattr(p, "to_local", p.detach)() for p in model.parameters()]
    held, total = sum(w.numel() for w in weights), sum(p.numel() for p in model.parameters())
    accelerator.print(
        f"each rank holds {{held}} of {{total}} weights, {{accelerator.num_processes}} ranks"
    )
    data = batches(accelerator.process_index)
    for step in range(1, steps + 1):
        begin, total = time.perf_counter(), 0.0
        for _ in range(JOB["gradient_accumulation_steps"]):
            with accelerator.accumulate(model):
                tokens = next(data).to(accelerator.device)
                loss = model(input_ids=tokens, labels=tokens).loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            total += float(loss.detach()) / JOB["gradient_accumulation_steps"]
        accelerator.wait_for_everyone()
        took = time.perf_counter() - begin
        accelerator.print(f"step {{step}}/{{steps}} loss {{total:.4f}} step time (s): {{took:.3f}}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
"""
)

_DEEPSPEED = (
    _HEAD
    + """
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=JOB["steps"])
    parser.add_argument("--local_rank", type=int, default=0)
    steps = parser.parse_args().steps
    deepspeed.init_distributed()
    model = planned_model()
    if JOB["gradient_checkpointing"]:
        model.gradient_checkpointing_enable()
    config = json.loads((HERE / "ds_config.json").read_text())
    if not torch.cuda.is_available():
        config["optimizer"]["params"]["torch_adam"] = True
    engine, _, _, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config
    )
    if torch.distributed.get_rank() == 0:
        ranks = torch.distributed.get_world_size()
        print(f"ZeRO {{engine.zero_optimization_stage()}}, {{ranks}} ranks", flush=True)
    data = batches(torch.distributed.get_rank())
    for step in range(1, steps + 1):
        begin, total = time.perf_counter(), 0.0
        for _ in range(engine.gradient_accumulation_steps()):
            tokens = next(data).to(engine.device)
            loss = engine(input_ids=tokens, labels=tokens).loss
            engine.backward(loss)
            engine.step()
            total += float(loss.detach()) / engine.gradient_accumulation_steps()
        took = time.perf_counter() - begin
        if torch.distributed.get_rank() == 0:
            said = f"step {{step}}/{{steps}} loss {{total:.4f}} step time (s): {{took:.3f}}"
            print(said, flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
"""
)

_TRAINER = '''"""The plan under transformers' Trainer, on random tokens: replace `RandomTokens`."""

import json
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
)

HERE = Path(__file__).parent
JOB = json.loads((HERE / "training.json").read_text())


class RandomTokens(Dataset):
    def __len__(self):
        return 1 << 20

    def __getitem__(self, place):
        source = torch.Generator().manual_seed(place)
        tokens = torch.randint(JOB["vocab_size"], (JOB["seq_len"],), generator=source)
        return {"input_ids": tokens, "labels": tokens}


def main():
    (arguments,) = HfArgumentParser(TrainingArguments).parse_json_file(
        HERE / "training_args.json"
    )
    config = AutoConfig.from_pretrained(HERE)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    Trainer(model=model, args=arguments, train_dataset=RandomTokens()).train()


if __name__ == "__main__":
    main()
'''


def hugging_face_config(planned: PlannedRun, target: str) -> ExportedFile:
    """`config.json`; raises InputError where the model was named by code."""
    if not planned.config:
        raise InputError(
            f"--to {target}: {planned.model} is code, and {target} builds models of transformers; "
            "plan with a config.json, or export to torchrun"
        )
    return ExportedFile(path="config.json", text=to_json(dict(planned.config)))


def job_file(planned: PlannedRun, *, recomputes: bool) -> ExportedFile:
    """`training.json`: the batch and other values that are in no file of the target.

    recomputes   whether the program itself switches recomputation on
    """
    run = planned.run
    data = {
        "micro_batch": run.micro_batch,
        "gradient_accumulation_steps": run.num_microbatches,
        "global_batch": run.global_batch,
        "seq_len": run.seq_len,
        "vocab_size": run.model.vocab_size,
        "gradient_checkpointing": recomputes,
        "steps": 100,
    }
    return ExportedFile(path="training.json", text=to_json(data))


def accelerate_script() -> ExportedFile:
    """`train.py` for `accelerate launch`."""
    text = _ACCELERATE.format(
        title="The plan under accelerate.", imports="from accelerate import Accelerator"
    )
    return ExportedFile(path="train.py", text=text)


def deepspeed_script() -> ExportedFile:
    """`train.py` for DeepSpeed's engine."""
    text = _DEEPSPEED.format(title="The plan under DeepSpeed's engine.", imports="import deepspeed")
    return ExportedFile(path="train.py", text=text)


def trainer_script() -> ExportedFile:
    """`train.py` for the Trainer."""
    return ExportedFile(path="train.py", text=_TRAINER)

"""Put first on PYTHONPATH, this lets frameworks that ask for a GPU train on CPUs with gloo: their
own code runs, torch.cpu stands in for torch.cuda where they look for a device."""

import importlib.abc
import importlib.util
import os
import sys


def patch_accelerate(state):
    """One process group of gloo is what accelerate takes for several GPUs."""
    import torch

    kind = state.DistributedType.MULTI_GPU
    state.PartialState._prepare_backend = lambda *_, **__: ("gloo", kind)
    state.PartialState.default_device = property(lambda _: torch.device("cpu"))
    state.PartialState.set_device = lambda self: setattr(self, "device", torch.device("cpu"))


def patch_torchtitan(tools):
    """Its device is a CPU, with what its monitor asks of a device."""
    import types

    import torch

    device = types.ModuleType("cpu_device")
    device.__dict__.update(
        {name: getattr(torch.cpu, name) for name in dir(torch.cpu) if not name.startswith("__")}
    )
    device.get_device_name = lambda *_: "CPU"
    device.get_device_properties = lambda *_: types.SimpleNamespace(total_memory=2**33)
    device.reset_peak_memory_stats = device.empty_cache = lambda *_: None
    device.memory_stats = lambda *_: {}
    device.set_device = lambda *_: None
    device.current_device = lambda: 0
    tools.device_type, tools.device_module = "cpu", device

    # gloo cannot scale within a sum; the factor is applied before it.
    from torch.distributed.fsdp import FSDPModule

    factor_alone = FSDPModule.set_gradient_divide_factor

    def with_sums(self, factor):
        factor_alone(self, factor)
        self.set_force_sum_reduction_for_comms(True)

    FSDPModule.set_gradient_divide_factor = with_sums


def patch_attention(attention):
    """Flex attention has no backward on CPUs; torch's own of the same causal mask has."""
    import torch

    flex = getattr(attention, "FlexAttention", None)
    if not hasattr(flex, "compiled_flex_attn"):
        return  # of 0.2, whose attention runs on CPUs

    def causal(q, k, v, *, scale=None, enable_gqa=False, **_):
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(q, k, v, is_causal=True, scale=scale, enable_gqa=enable_gqa), None

    flex.compiled_flex_attn = staticmethod(causal)


def patch_timeouts(utils):
    """0.3 shortens a group's timeout after the first step by a call that torch 2.13 lacks."""
    import torch.distributed

    if not hasattr(torch.distributed, "set_timeout"):
        utils.set_pg_timeouts = lambda *_, **__: None


def patch_deepspeed(comm):
    """Its shared-memory collectives are compiled at run time; gloo's do."""
    comm.build_shm_op = lambda: None


_PATCHES = {
    "deepspeed.comm.torch": patch_deepspeed,
    "accelerate.state": patch_accelerate,
    "torchtitan.distributed.utils": patch_timeouts,
    "torchtitan.models.common.attention": patch_attention,
    "torchtitan.tools.utils": patch_torchtitan,
}


class _Finder(importlib.abc.MetaPathFinder):
    """Patches a module right after it was run."""

    def find_spec(self, name, path, target=None):
        if name not in _PATCHES:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        sys.meta_path.insert(0, self)
        run = spec.loader.exec_module

        def run_and_patch(module):
            run(module)
            _PATCHES[name](module)

        spec.loader.exec_module = run_and_patch
        return spec


if os.environ.get("SHARDWRIGHT_ON_CPU"):
    sys.meta_path.insert(0, _Finder())

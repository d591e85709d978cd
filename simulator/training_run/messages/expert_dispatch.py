"""All-to-alls of experts that send a token to a node once, however many of its experts are there.

DeepEP (github.com/deepseek-ai/DeepEP, README, "normal kernels": forwarding from the network to the
links inside the node) and NVIDIA's HybridEP do so; Megatron-Core's older `alltoall` dispatcher
sends a copy to each expert. A token whose k experts are picked evenly among n nodes reaches
n (1 - (1 - 1/n)^k) of them; routers limited to fewer nodes (DeepSeek-V3, four) reach less.
"""

from __future__ import annotations

from dataclasses import replace

from profiles.model.figures.transformer import Transformer
from simulator.collectives import CollectiveTime
from simulator.training_run.messages.rank_group import RankGroup
from simulator.training_run.messages.run_links import Links


def sent_once(
    copies: CollectiveTime, *, model: Transformer, group: RankGroup, links: Links
) -> CollectiveTime:
    """The all-to-all that takes `copies` where a copy goes to every expert.

    group  the ranks that the experts are spread over
    """
    nodes = group.ranks / group.within(links.node_devices)
    share = reached(nodes, model.top_k) / model.top_k
    return replace(copies, outer_s=share * copies.outer_s, far_s=share * copies.far_s)


def reached(nodes: float, top_k: int) -> float:
    """Nodes that a token is sent to, on average.

    >>> reached(1, 8), round(reached(8, 8), 2)
    (1.0, 5.25)
    """
    return nodes * (1.0 - (1.0 - 1.0 / nodes) ** top_k)

"""`PricedModel`: a traced model on a cluster with its workload, which every price is of."""

from __future__ import annotations

from dataclasses import dataclass

from planner.costs.chain_costs import ChainCosts, price_chain
from planner.traced import Traced
from profiles.hardware.catalogue.cluster import Cluster
from profiles.model.graph import ModelGraph
from simulator.traced.stack import Stack
from simulator.traced.step_tail import Held, Tail, Tie, price_tail, price_tie
from simulator.values.plan import Recompute
from simulator.values.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedModel:
    """What prices of cells follow from.

    strategies     recompute kinds that a block may use
    micro_batches  those that will be asked for, rising
    """

    traced: Traced
    cluster: Cluster
    workload: Workload
    stack: Stack
    strategies: tuple[Recompute, ...]
    micro_batches: tuple[int, ...]

    def graph(self, micro_batch: int, tp: int) -> ModelGraph:
        """The graph of a micro-batch as one of `tp` ranks runs it."""
        return self.traced.at(micro_batch, tp)

    def kinds(self, micro_batch: int, tp: int) -> list[int]:
        """[n] the kind of each block of the chain."""
        return [ref.kind for ref in self.graph(micro_batch, tp).chain]

    def chain(self, micro_batch: int, devices: tuple[int, ...]) -> ChainCosts:
        """What the kinds of block cost on a tensor-parallel group under each strategy."""
        graph = self.graph(micro_batch, len(devices))
        return price_chain(graph, self.strategies, devices, self.cluster)

    def tail(
        self, held: Held, group: tuple[int, ...], *, zero_stage: int, tp: int, pipelined: bool
    ) -> Tail:
        """What the dp group's first device, which holds these parameters, does after its last
        backward."""
        return price_tail(
            held,
            group=group,
            zero_stage=zero_stage,
            precision=self.workload.precision,
            optimizer=self.workload.optimizer,
            cluster=self.cluster,
            stack=self.stack,
            pipelined=pipelined,
            sharing=tp,
        )

    def tie_s(self, tie: Tie, *, shards: int, tp: int) -> float:
        """Seconds in which the ranks that hold a tied parameter sum its gradients, each one of so
        many shares of it."""
        cost = price_tie(
            tie,
            shards=shards,
            precision=self.workload.precision,
            cluster=self.cluster,
            stack=self.stack,
            sharing=tp,
        )
        return cost.time_s

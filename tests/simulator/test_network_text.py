"""Words about networks: rates by hand from what sources print."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from profiles.errors import InputError, UnknownNameError
from profiles.hardware.catalogue.catalog import get_link, link_names
from profiles.hardware.catalogue.node_network import usual_network
from shardwright.runs.network_text import network_of

H100 = ("h100-sxm-80gb", 8)
A100 = ("a100-sxm-80gb", 8)


@pytest.mark.parametrize(
    ("text", "gigabits", "nics", "kind"),
    [
        ("8x200Gb/s HDR IB per node (Selene)", 1600, 8, "infiniband"),
        ("8x200 Gbps HDR IB per node", 1600, 8, "infiniband"),
        ("Omni-Path 4x100Gb/s per node (Jean Zay)", 400, 4, "omni-path"),
        ("800 Gbps/node (config)", 800, 0, "infiniband"),
        ("1600 Gbps/node RoCE", 1600, 0, "roce"),
        ("1x100 Gb/s EDR IB per node", 100, 1, "infiniband"),
        ("3.2 Tb/s per node EFA", 3200, 0, "efa"),
        ("8x NDR InfiniBand", 3200, 8, "infiniband"),
        (
            "Storage: 2x ConnectX-7 IB NDR 400Gb/s, Compute: 8x ConnectX-7 IB NDR 400Gb/s, "
            "Management: 100Gb/s Ethernet NIC",
            3200,
            8,
            "infiniband",
        ),
        (
            "Storage+Management: 1x NVIDIA BlueField 2 DPU 100Gb/s, Compute: 8x NVIDIA ConnectX-7 "
            "IB NDR 400Gb/s",
            3200,
            8,
            "infiniband",
        ),
        (
            "Storage&Compute: 4x ConnectX-7 IB NDR 400Gb/s, Management: 25Gb/s Ethernet NIC",
            1600,
            4,
            "infiniband",
        ),
        ("8x ConnectX-7 IB NDR 400Gb/s + 200Gb/s Ethernet NIC", 3200, 8, "infiniband"),
        ("8x NDR400", 3200, 8, "infiniband"),
        ("2x HDR100", 200, 2, "infiniband"),
        ("EDR per node", 100, 0, "infiniband"),
        ("50 GB/s per node RoCE", 400, 0, "roce"),
        ("4x100 Gb RoCE per node", 400, 4, "roce"),
    ],
)
def test_printed_rates(text: str, gigabits: float, nics: int, kind: str) -> None:
    found = network_of(text, *H100)
    assert found.bytes_per_s_per_node == pytest.approx(gigabits * 1e9 / 8)
    assert (found.cards, found.kind, found.assumed) == (nics, kind, False)
    assert found.source == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "none",
        "10G Ethernet",
        "Giga Ethernet",
        "Ethernet",
        "2 x Ethernet Controller X710 for 10GBASE-T, 2 x Ethernet Controller 10G X550T",
    ],
)
def test_silent_words_mean_the_usual_network_of_the_device(text: str) -> None:
    # Eight ConnectX-7 of 400 Gb/s (profiles/data/devices/h100-sxm-80gb.toml).
    found = network_of(text, *H100)
    usual = usual_network(*H100)
    assert replace(found, source=usual.source) == usual
    assert ("management network" in found.source) == ("thernet" in text)
    assert found.bytes_per_s_per_node == 8 * 50e9
    assert found.assumed
    assert "h100-sxm-80gb.toml" in found.source


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("RoCE RDMA", "roce"),
        ("Infiniband, Ethernet", "infiniband"),
        ("ROCE2; Data bandwidth for GPU-PCIe: 504 GB/s; PCIe-NIC: 500 GB/s", "roce"),
        ("100GbE InfiniBand", "infiniband"),
    ],
)
def test_a_kind_without_a_rate_keeps_the_usual_rate(text: str, kind: str) -> None:
    found = network_of(text, *A100)
    assert (found.kind, found.assumed) == (kind, True)
    assert found.bytes_per_s_per_node == 8 * 25e9
    assert text in found.source


def test_a_rack_of_trays_has_the_cards_of_all_its_trays() -> None:
    # MLPerf prints a tray's four cards; 16 trays of four devices share one NVLink domain.
    found = network_of("4x ConnectX-7 IB NDR 400Gb/s", "gb200-nvl72", 64)
    assert found.cards == 64
    assert found.bytes_per_s_per_node == 64 * 50e9


def test_a_shared_card_is_counted_once() -> None:
    # Two A100 PCIe boards share a card of 200 Gb/s.
    found = usual_network("a100-pcie-80gb", 8)
    assert (found.cards, found.bytes_per_s_per_node) == (4, 4 * 25e9)


def test_a_slice_of_a_pod_leaves_through_the_cards_of_its_hosts() -> None:
    # v5e: eight chips of a host share 200 Gb/s.
    found = network_of("DCN between slices", "tpu-v5e", 256)
    assert found.bytes_per_s_per_node == 256 / 8 * 25e9
    assert found.assumed


@pytest.mark.parametrize(
    ("text", "gigabits"),
    [("InfiniBand NDR", 3200), ("RoCE 400 Gb/s", 3200), ("InfiniBand 200 Gb/s", 1600)],
)
def test_a_generation_without_a_count_is_that_of_the_usual_cards(text: str, gigabits: int) -> None:
    found = network_of(text, *H100)
    assert (found.cards, found.assumed) == (8, True)
    assert found.bytes_per_s_per_node == gigabits * 1e9 / 8
    assert "prints no number of cards" in found.source


@pytest.mark.parametrize("text", ["0 Gb/s", "8x 0Gb/s IB", "0.0 Gbps per node"])
def test_a_rate_of_zero_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="has no bandwidth"):
        network_of(text, *H100)


def test_words_for_a_list_of_defaults() -> None:
    assert usual_network(*H100).words == "network infiniband: 8 cards, 400 GB/s per node"


def test_an_unknown_device_is_named() -> None:
    with pytest.raises(UnknownNameError, match="h1000"):
        network_of("8x400Gb/s", "h1000", 8)


def test_the_network_of_a_recipe_is_read_as_its_instances_have_it() -> None:
    """p4d.24xlarge: 400 Gb/s of EFA per instance (profiles/data/links/efa-v1.toml)."""
    found = network_of("EFA 4x100 Gb/s per node", "a100-sxm-40gb", 8)
    assert (found.kind, found.bytes_per_s_per_node, found.cards) == ("efa", 50e9, 4)
    assert not found.assumed


def test_every_link_of_the_catalogue_means_what_it_says() -> None:
    for name in link_names():
        link = get_link(name)
        found = network_of(name.upper().replace("-", " "), *H100)
        if link.kind:
            assert found.bytes_per_s_per_node == 8 * link.bandwidth_bytes_per_s.value
            assert (found.kind, found.latency_s) == (link.kind, link.latency_s.value)
            assert not found.assumed
        else:
            assert found == usual_network(*H100)


@pytest.mark.parametrize("kind", ["RoCE", "Ethernet", "InfiniBand", "EFA"])
def test_a_faster_link_of_one_kind_is_never_slower(kind: str) -> None:
    found = [network_of(f"8x{rate} Gb/s {kind} per node", *H100) for rate in (100, 200, 400, 800)]
    for slow, fast in pairwise(found):
        assert fast.bytes_per_s_per_node * fast.efficiency > (
            slow.bytes_per_s_per_node * slow.efficiency
        )
        assert fast.latency_s <= slow.latency_s


@pytest.mark.parametrize(("text", "near"), [("carrier pigeon", "efa"), ("infinband", "infiniband")])
def test_words_that_name_no_network_are_refused(text: str, near: str) -> None:
    with pytest.raises(UnknownNameError, match=near):
        network_of(text, *H100)

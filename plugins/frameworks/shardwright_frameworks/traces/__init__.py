"""Profiles and benchmarks: traces, memory snapshots, nccl-tests."""

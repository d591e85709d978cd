"""Reader and checker of the contest on intra-operator parallelism."""

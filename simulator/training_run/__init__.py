"""Predicting a training run that is described by figures: architecture, cluster and degrees."""

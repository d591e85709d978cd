"""Predicting a training run that is described by numbers: architecture, cluster and degrees."""

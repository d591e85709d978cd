"""Launchers of an exported folder: Slurm, Kubernetes, Ray, SkyPilot."""

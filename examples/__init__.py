"""Models that are no transformers: `examples.resnet50:build`, `examples.unet:build`."""

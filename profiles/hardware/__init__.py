"""Hardware: devices, links, clusters, prices; described and measured."""

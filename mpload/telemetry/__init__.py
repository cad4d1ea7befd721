"""What a loader says about itself while it runs.

```
stats     LoaderStats: what was done, how long it took, which stage limits it
counting  Telemetry: counts batch by batch, and notifies listeners
page      a page of memory that `mpload top` reads from another process
showing   a progress bar on a terminal
writers   statistics as JSON lines, for Prometheus, for TensorBoard
```
"""

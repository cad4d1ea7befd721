"""Statistics of a loader while it runs, and the ways to see them.

```
stats         LoaderStats: counts, times, memory, and the stage that limits the rate
server_stats  ServerStats: what each server of samples has done
latencies     Latencies: a histogram of waiting times
counting      Telemetry: counts batch by batch, and notifies listeners
page          a page of shared memory that `mpload top` reads from another process
showing       a progress bar on a terminal or in a notebook
writers       statistics as JSON lines, for Prometheus, for TensorBoard
```
"""

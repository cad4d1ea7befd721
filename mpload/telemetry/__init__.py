"""What a loader says of itself while it runs.

```
stats     LoaderStats: what was done, how long it took, which stage limits it
counting  Telemetry: counts batch by batch, and tells whoever listens
page      a page of memory that `mpload top` reads from another process
showing   a progress bar on a terminal
```

`mpload.writers` takes it to files: JSON lines, Prometheus, TensorBoard.
"""

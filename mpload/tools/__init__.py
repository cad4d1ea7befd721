"""Programs built on the loader.

```
doctor    measures what limits a job
running   looks at the loaders of a running job from another process
trials    runs a loader for a few seconds
bench     benchmarks image decoders, and the memory of lists of samples
pack      writes the samples of an index into tar shards, LMDB files or arrays
bounded   reads whole files, but none that training would refuse because of its size
rows      fills the row index ahead of training
```
"""

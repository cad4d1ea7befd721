"""Which sample comes when: arithmetic on a few integers. Nothing here reads a file or starts a process.

```
order         the order of an epoch: a permutation that is computed, never stored
plan          which positions of that order a batch of a rank holds; what happens at the tail
topology      which of how many ranks this process is
checkpoint    where a run stands
batch_number  a batch as the few integers that travel to a worker
batching      order and plan of every epoch of a run: which samples each batch holds
sample_rng    random numbers that belong to a sample
ranges        the numbers that a plan can count to
```
"""

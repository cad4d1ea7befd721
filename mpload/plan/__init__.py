"""Which samples each batch holds, computed from a few integers. Nothing here reads a file or starts a process.

```
order         the order of an epoch: a permutation that is computed, never stored
permutation   the permutation, of any range of integers
_permutation  its arithmetic (C, optional)
parts         a share or a fold of the samples
alias         alias tables: draws from any discrete distribution
plan          which positions of that order each batch of a rank holds, and how the epoch ends
bucket_plan   the same if all samples of a global batch are of one bucket
bucket_turns  the sequence of buckets in an epoch
mixture       the order of a mixture of sources
shares        divides positions among sources by weight
boundaries    which turns of sources are taken before a boundary of blocks of positions
turns         the source that each position takes a sample of, and which of its samples
source_orders the order in which each source of a mixture goes through its samples
laps          epochs that are longer or shorter than the index
repeats       the sample_ids of samples that come several times in an epoch
permutations  many permutations at once
_mixture      the loops of mixtures over single positions (C, optional)
topology      the rank of this process and the number of ranks
checkpoint    the state from which a run resumes
batch_number  the integers that identify a batch, sent to the worker that makes it
batching      the order and plan of every epoch of a run: which samples each batch holds
sample_rng    random numbers that depend only on seed, epoch and sample
ranges        the largest numbers of samples, seeds and epochs
```
"""

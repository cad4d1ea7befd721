"""The training process: datasets and loaders.

What users make:

```
dataset  MPDataset: an index as an iterable dataset
loader   MPLoader: its batches, made by worker processes
```

Where batches come from:

```
source        the protocol of a source, and which one a dataset is
index_run     IndexRun: how an MPDataset reads its index, and where the run stands
index_source  IndexSource: an MPDataset
map_source    MapSource: any map-style dataset
forms         how columns of samples are carried in a slot
tensors       values of a sample or batch as torch shows them
epochs        which epoch comes next, known to all processes that read a dataset
iterations    one iteration of a loader
frameworks    how a loader gets on with Lightning, Accelerate and others
```

What keeps workers busy, inside the budget:

```
engine         the workers of a loader, and their number of slots
scaling        how many workers
governor       fewer batches ahead while memory is short
machine_share  the part of the machine that belongs to this rank
advice         warnings that say what slows a loader down
```
"""

"""Finds what limits a job: measures on the user's own data. `mpload.judgement` then judges, and proposes remedies.

```
examine       measures, judges, and tries the first remedies
subject       what is examined: an MPDataset or a map-style dataset, as it is or with a remedy
samples       measures the cost of samples: read, decode, transform
alternatives  measures cheaper ways to decode the same samples
chunks        decodes images as a worker does
stopwatch     measures CPU time and waiting time of a callable
storage       measures the storage: cold and warm, one read at a time and many at once; and lookups in a large index
environment   reads the machine: cores, memory, descriptors, file system
empty         samples without cost, which show the cost of transport
```
"""

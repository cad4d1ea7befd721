"""Finds what limits a job: measures on the user's own data, judges by arithmetic, and proposes remedies.

```
examine      measures, judges, and tries the first remedy if it is a setting of the loader
environment  reads the machine: cores, memory, descriptors, file system
storage      measures the storage: cold and warm, one read at a time and many at once
samples      measures the cost of samples: read, decode, transform
lookup       measures lookups in an index that does not fit into memory
empty        samples without cost, which show the cost of transport
facts        the measurements, as plain values
model        predicts the rate of a job from the cost of its parts
verdict      decides from the facts what limits the job
remedies     lists the changes that would help, the cheapest first, with their gains
report       a diagnosis as an HTML page
```
"""

"""The benchmarks of `mpload bench`: image decoders, and the memory of lists of samples.

```
decoders       images per second of each installed library
memory         the memory of a list in a training job, by storage and loader
memory_case    one such case, run in a process of its own
sample_lists   lists of samples of any length
memory_report  tables of the results
```
"""

"""What `mpload bench` measures: decoders, and the memory that a list of samples takes.

```
decoders       images a second of each installed library
memory         a list's memory in a training job, by how it is kept and loaded
memory_case    one case of that, in a process of its own
sample_lists   lists of samples of any length
memory_report  tables and a figure of what was measured
```
"""

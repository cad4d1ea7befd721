"""How much memory and how many cores the machine has, and which processes use them.

```
machine       memory and cores that the machine and its containers allow this process
usage         the memory that a process really uses: PSS and USS
core_times    how long processes run on a core, wait for one, and sleep
process_tree  ProcessTree: a process and its descendants, sampled repeatedly at a bounded cost
monitor       MemoryMonitor: the memory of a process tree over time, and which processes grow
contention    what else takes cores, memory and storage: other processes, quotas, swapping
budget        MemoryBudget: how a loader divides its memory among slots, workers and read-ahead
```
"""

"""What memory the machine has, and which processes take it.

```
machine       memory and cores that the machine and its containers leave to this process
usage         what a process really takes: PSS and USS
process_tree  a process and its descendants, read again and again
monitor       MemoryMonitor: a process tree over time, and which processes grow
budget        MemoryBudget: how a number of bytes is divided among slots, workers and read-ahead
```
"""

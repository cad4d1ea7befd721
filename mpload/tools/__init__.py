"""Programs built on the loader.

```
doctor    what limits a job, measured
demand    what a job needs of storage and cores, by arithmetic (`mpload plan`)
remedy    Remedy: what would make a job faster
tune      which numbers make a loader fastest
trials    a loader that runs for a few seconds
bench     decoders, and the memory that lists take
pack      samples of an index as tar shards or LMDB files
pictures  how everything that mpload draws looks
```
"""

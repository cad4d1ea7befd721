"""Where bytes come from.

```
ranges   ByteRange, and the planner that merges neighbouring runs of bytes into fewer reads (pure NumPy, opens nothing)
confined  where a path really leads, and that it stays inside the root
local    LocalStorage: files and shards below a root folder
lmdb     LmdbStorage: values of LMDB data files
lmdbscan  scan_lmdb: all of such a file, read by a process of its own
lmdbwriter  LmdbWriter: makes such a file
parquet  ParquetStorage: values of Parquet files
remote   RemoteStorage: objects behind URLs
listing  list_in_parts: keys that a provider lists page after page, asked for at several places at once
opening  open_storage: which of them an index is read from
ahead    ReadAhead: samples read before they are asked for, by threads, where a storage is slow to answer
```

Every storage answers one question: `read(ranges: Sequence[ByteRange]) -> list[bytes]`, in the order asked. The protocol
itself stands with the pipeline, which asks it. Nothing is imported here, so that a worker loads only what it uses.
"""

"""Where bytes come from.

```
ranges      ByteRange, and the planner that merges neighbouring ranges into fewer reads; it opens nothing
confined    where a path really leads, and that it stays inside the root
local       LocalStorage: files and shards below a root folder
lmdb        LmdbStorage: values of LMDB data files
lmdb_scan   all values of an LMDB data file, read by a process of its own
parquet     ParquetStorage: values of Parquet files
remote      RemoteStorage: objects behind URLs
listing     the keys of a bucket, listed at several places at once
opening     open_storage: which of these an index is read from
read_ahead  ReadAhead: threads that read samples before their turn, where a storage is slow
_files      reads whole files (C, optional)
```

Every storage answers one question: `read(ranges: Sequence[ByteRange]) -> list[bytes]`, in the order asked. Nothing is
imported here, so that a worker loads only what it uses.
"""

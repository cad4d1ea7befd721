"""Where bytes come from.

```
ranges      ByteRange, Span, LmdbValue, RowValue: which bytes to read
merging     plans few reads for many neighbouring ranges; it opens nothing
protocols   Storage: what all of these are
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

Nothing is imported here, so that a worker loads only what it uses.
"""

"""Keeps a fixed subset of a data set's samples on a fast disk or in memory, for all processes and later runs.

```
choice    PartialCache: the value of `cache=`; computes the fraction of samples that fits a size limit
opened    OpenCache: the cache of one index, which the pipeline asks for every sample
machines  Machines: several machines, whose caches keep different samples
elsewhere OtherCaches: reads samples that other machines keep
folder    CacheFolder: the files of one data set's cache
writer    SegmentWriter: appends to a process's own segment, within the size limit
trusted   opens these files and refuses files that other users have put in their place
entries   the format of one sample in a segment
compact   the form of an image that `what="resized"` keeps
```

There is one folder per data set, format version and form. Its files:

- `table`: a header page, then 8 bytes for each sample of the index: the place where its entry starts (segment number
  and offset), or 0. The file is sparse. It is read and written by position, not memory-mapped: a process is killed if
  it writes to a map of a sparse file on a full disk, or reads from a map of a file that was truncated.
- `segment-000001`, ...: entries, one after another. Only the process that holds a segment's lock appends to it. When
  that process has ended, another one may take the segment over. A segment's file size includes the space reserved for
  it, so the sizes of the folder's files are all the bookkeeping that is needed.
- `lock`: held while space is reserved. Readers do not need it.
- `about.json`: describes the data set, for `mpload cache info`.

An entry is written first; then its place is published in a single 8-byte write. An entry is used only if its keyed
checksums match. Data that a crash, a full disk or another program has damaged is therefore a miss.
"""

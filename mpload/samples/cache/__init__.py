"""A fixed part of a data set's samples, kept on a fast disk or in memory, for all processes and later runs.

```
choice    PartialCache: what users write as `cache=`; from a size limit to the fraction that fits
opened    OpenCache: one index's cache, asked for every sample by the pipeline
folder    CacheFolder: the files of one data set's cache: what lies where
writer    SegmentWriter: a process's own segment, and how much of the limit is left
trusted   opens these files, and nothing that somebody else has put in their place
entries   what one sample looks like in a segment
compact   the form of an image that `what="resized"` keeps
```

The files, in a folder per data set, format version and form:

- `table`: a page of facts, then 8 bytes for every sample of the index: where its entry starts (segment number and
  offset), or 0. Sparse. It is read and written by position, not mapped: storing to a map of a sparse file whose disk is
  full kills the process, and so does looking at one that was cut.
- `segment-000001`, ...: entries, one after another. Each is appended to by one process, which holds a lock on it; what
  a dead process left is gone on with by the next one. A segment's length is the space reserved for it, so that the
  sizes of the files in the folder are all the bookkeeping there is.
- `lock`: held while space is reserved, and by nobody who reads.
- `about.json`: which data set this is, for `mpload cache info`.

An entry is written first and its place published after it, in one 8-byte write; it is believed only where its keyed
checksums hold. So whatever a crash, a full disk or another program leaves behind is a miss.
"""

"""The index: one line of text a sample, and a memory-mapped sidecar that makes any line reachable at once.

```
columns   what a cell holds: path, span, lmdb, int, float, str
text      the text format: header, lines, escapes; plain lists too
scan      one fast pass over a text: where lines start, their labels, a digest
sidecar   the Arrow file of what a scan found: written, checked, located (the only reader of pyarrow)
index     Index: records and labels through NumPy views of the map
opening   open_index: from a path to an Index
sources   folders, lists, tar shards: what an index can be made from
build     build_index: from a source to a text and its sidecar
```

Public names come from `mpload` itself; nothing is imported here, so that a worker can unpickle an `Index` without pyarrow.
"""

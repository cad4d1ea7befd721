"""The index: one line of text a sample, and a sidecar that makes any line reachable at once.

```
columns    what a cell holds: path, span, lmdb, row, int, float, str
text       the text format: header, lines, escapes; plain lists too
scan       one fast pass over a text: where lines start, their labels, a digest
sidecar    the Arrow file of what a scan found: written, checked, located (the only reader of pyarrow)
open_file  a file that is read by position
lookup     columns of a sidecar, read by position and without pyarrow
index      Index: records and labels
opening    open_index: from a path to an Index
```

`mpload.ingest` makes one. Nothing is imported here, so that a worker can unpickle an `Index` without pyarrow.
"""

"""The index: one line of text a sample, and a sidecar that makes any line reachable at once.

Reading one:

```
columns   what a cell holds: path, span, lmdb, row, int, float, str
text      the text format: header, lines, escapes; plain lists too
scan      one fast pass over a text: where lines start, their labels, a digest
sidecar   the Arrow file of what a scan found: written, checked, located (the only reader of pyarrow)
openfile  a file that is read by position
lookup    columns of a sidecar, read by position and without pyarrow
index     Index: records and labels
opening   open_index: from a path to an Index
```

Making one:

```
rows       what every source gives: columns, root, the cells of one sample after another; what was left out
folders    class folders and flat folders; order as ImageFolder's
remote     objects below a URL, as a folder
sorting    sort more names than memory holds
grouping   which members of a shard are one sample
tars       tar shards, as spans
lmdbs      LMDB data files, as keys
tfrecords  TFRecord files, as spans
tables     Arrow files, as spans, and Parquet files, as rows
images     how the bytes of images start
lists      plain lists, CSV, and indexes that stand already
sources    which of these a path is
splitting  which part of a split a sample belongs to
writing    from rows to texts, complete or not at all
build      build_index: from a source to a text and its sidecar
merge      merge_indexes: several into one
sizes      measure_sizes: bytes of each sample, into the sidecar
checking   check_index: what is wrong with an index or its files
threads    work that waits for disks, done by some threads at once
```

Public names come from `mpload` itself; nothing is imported here, so that a worker can unpickle an `Index` without
pyarrow.
"""

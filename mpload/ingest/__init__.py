"""Makes an index: of folders, lists, shards, tables and buckets.

From a source to rows:

```
sources         which kind of source a path is
folders         class folders and flat folders, in the order of ImageFolder
folder_options  FolderOptions: what counts as an image
buckets         objects below a URL, as a folder
tars            tar shards, as spans
lmdbs           LMDB data files, as keys
tfrecords       TFRecord files, as spans
tables          Arrow files, as spans, and Parquet files, as rows
lists           plain lists, CSV, and existing indexes
rows            what every source gives: columns, root, cells, and what was left out
grouping        which members of a shard are one sample
signatures      how the bytes of image files start
sorting         sort more names than memory holds
```

From rows to an index:

```
build        build_index: from a source to a text and its sidecar
merge        merge_indexes: several indexes into one
splitting    which part of a split a sample belongs to
writing      writes texts, each complete or not at all
image_sizes  the size in bytes of each sample, added to the sidecar
checking     what is wrong with an index or its files
threads      work that waits for disks, done by several threads
```
"""

"""Writes the samples of an index into tar shards, LMDB files or arrays, with an index of the shards.

```
packing      pack_index and verify_pack
options      PackOptions, and the conversion of a sample's bytes to the stored form
columns      which columns are made smaller, and which are stored as they are
manifest     reads `pack.json`, which says how a pack was begun
lmdb_file    writes an LMDB data file, or compares one
workers      worker processes, here or on other machines, that make shards
folder       locks the folder of a pack, and deletes unfinished files
rows         the rows of `.npy` shards, and the RawArray that reads them
comparing    compares files, and the lines of the index, with what they should hold
```
"""

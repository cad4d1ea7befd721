"""Writes the samples of an index into tar shards or LMDB files, with an index of the shards.

```
packing      pack_index and verify_pack
options      PackOptions, and the conversion of a sample's bytes to the stored form
lmdb_writer  LmdbWriter: writes an LMDB data file
```
"""

"""Writes the samples of an index into tar shards or LMDB files, and an index for them.

```
packing      pack_index and verify_pack
options      PackOptions, and how they keep the bytes of a sample
lmdb_writer  LmdbWriter: makes an LMDB data file
```
"""

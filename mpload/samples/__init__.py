"""What a worker does to a sample. Nothing here imports torch.

```
pipeline    Pipeline: from a record to a sample: read, decode, transform
reading     where the bytes of a record come from
masks       refuses masks among photographs, which decoding as photographs would destroy
transforms  the user's transforms, seeded for each sample
policy      ErrorPolicy: what happens to a bad sample
batch       samples side by side
cache       PartialCache: some samples, kept on a fast disk or in memory
counts      what workers count
index_work  what a worker does with the samples of an index
map_work    what a worker does with a map-style dataset
leaves      the values in a sample of nested containers
probe       what a worker does to find out what samples are made of
```
"""

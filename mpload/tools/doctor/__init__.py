"""What limits a job: measured on the user's own data, judged by arithmetic, mended in order of cost.

```
examine      measure, judge, and try the first remedy where that can be done at once
environment  where the job runs: cores, memory, descriptors, file system
storage      how fast the storage is: cold and warm, one file at a time and many at once
samples      what samples cost: read, decode, transform
empty        samples that cost nothing, to see what carrying them costs
facts        what was found out: plain values
model        how fast a job would go, by what its parts take
verdict      what limits the job, by the facts alone
remedies     what would help, the cheapest first, and by how much
report       a diagnosis as one page
```
"""

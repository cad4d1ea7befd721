"""Decides what limits a job, and what would help: facts in, a verdict and remedies out. Nothing is measured here.

All who judge a job use it: `mpload plan` with assumed facts, `mpload doctor` with measured ones, and the loader's own
warning, `mpload top` and `mpload doctor --pid` with the statistics of a running loader.

```
facts      what is known about a job and its machine; None where something is not known
model      the capacity of each stage, and the rate of the job
stages     what each stage needs, and what it delivers
words      what each bottleneck is called
causes     why decoding or the storage is slow
verdict    which stage limits the job, and why
remedy     a change that would help, and what it gains
rescues    the changes that let a job run at all
remedies   the changes that would help, the cheapest first
```
"""

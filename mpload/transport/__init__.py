"""Worker processes and the shared memory that they fill: batches of samples, in order, whatever dies on the way.

```
slots     what a slot holds: fixed and ragged fields, laid out by arithmetic
ragged    fields whose shape varies from sample to sample
ring      the slots: one nameless shared map, and the lifetime of what is lent from it
chunks    parts of a batch: how a batch is cut, and what is redone after a death
fence     order between accesses to shared memory, on every processor
queue     chunks that wait, in shared memory
board     shared memory from which workers take chunks, and on which they say where they are
messages  what workers answer: a few integers, and failures as plain data
inbox     where those answers arrive
worker    the loop of a worker process, and the protocol of the work that it does
zygote    the process that workers are forked from (`python -m mpload.transport.zygote`)
fresh     a worker in a process of its own (`python -m mpload.transport.fresh`)
launch    the parent's side of the zygote
kernel    what Linux alone can do for a process
limits    what the system refuses, in words
crew      the workers of a pool: as many as wanted, replaced as they die, killed when stuck
batches   what goes into a pool and what comes out
parts     what a pool and its workers share: how it is made, and how it ends
stream    the batches of one iteration, in order
pool      WorkerPool: joins these, delivers in order, does again what died on the way
```

Linux only: it stands on memfd, pidfd and fork. Knows nothing of images, indexes or torch.
"""

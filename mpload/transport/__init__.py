"""Worker processes that fill batches in shared memory, delivered in order even when processes die.

```
slots     the layout of a slot: fixed and ragged fields, placed by arithmetic
ragged    fields whose shape varies from sample to sample
_ragged   ragged fields of many samples at once (C, optional)
ring      the slots, in one anonymous shared mapping, and the lifetime of the ones lent to the user
own_pages  pages of a process's own in place of shared ones, before it forks
chunks    parts of a batch: how a batch is cut, and what is retried after a death
fence     a memory barrier for shared memory, on every processor
queue     queues of waiting chunks, in shared memory
board     a shared-memory queue of chunks, on which workers also record their progress
messages  the answers of workers: a few integers, and failures as plain data
error_classes  errors that are also of the class of the user's error
inbox     the socket on which those answers arrive
worker    the loop of a worker process, and the protocol of the work it does
zygote    the process from which workers are forked (`python -m mpload.transport.zygote`)
fresh     a worker in a new process instead of a fork (`python -m mpload.transport.fresh`)
forking   the zygote as a fork of the parent, where that is safe
interrupts  holds Ctrl-C back while something must not be left half done
launch    the parent's side of the zygote
settings  settings of libraries that workers get too
hash_order  notices globals that depend on the order of a set, which differs in workers
changed_code  notices modules that have changed on disk since they were imported
pickling  pickles the work, with all that a script defines
shared_tensors  tensors in shared memory stay shared with workers that are no forks
kernel    Linux system calls and files for processes: parent-death signal, name, OOM score
limits    readable errors for resources that the system refuses
crew      the workers of a pool: keeps the wanted number alive, replaces the dead, kills the stuck
progress  how far the workers have come, even in the middle of a chunk
batches   the input and output of a pool
parts     the resources that a pool shares with its workers: how they are made and released
issuing   chunks on the board and those of later batches that workers already know of
stream    the batches of one iteration, in order
pool      WorkerPool: joins all of these, delivers in order, retries chunks after a death
```

Linux only: it relies on memfd, pidfd and fork. This package knows nothing of images and indexes.
"""

"""Samples made by servers, as a loader's workers ask for them. Nothing here imports torch.

```
protocol     the messages between a worker and a server: requests, answers, and the description of a dataset
describing   computes that description from a dataset, on both sides
options      Servers: which servers a loader has, and the limits for requests to them
served_work  ServedWork: the work of workers that have samples made by servers
asking       a worker's requests: several at a time, repeated if they fail, made a second time if they are late
requests     what is known of a request, of its answer and of a server
comparing    compares samples of servers with the same samples made here
evidence     what the failures in an answer mean: bad samples, or a server that lacks what others have
listing      the URLs of servers, which a file may list and change
probing      whether a server accepts connections, found out without waiting
patience     how long a worker waits for a server
choice       which server is asked next
connection   an HTTP connection to a server
tls          an encrypted connection, with few calls of the system
refusals     why a server and a loader do not fit together
```

The servers are in `mpload.servers`.
"""

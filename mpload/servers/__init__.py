"""Servers: processes that make samples for the loaders of other machines (`mpload serve`).

```
sample_work  the work of a server's workers; never imports torch
making       hands requests to the workers, and keeps what was made for other jobs
cached       gives other machines the samples that this machine's cache keeps
app          the HTTP application (aiohttp): routes, token, limits for clients
limits       these limits
connections  cuts off clients that do not ask, or do not read
addresses    where a server listens: a TCP port, or a Unix socket
metrics      the counters of a server, for Prometheus
serving      runs a server: `serve`
```

The other side, which asks them, is `mpload.client`, and so is the protocol.
"""

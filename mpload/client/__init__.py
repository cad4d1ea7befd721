"""Samples made by servers, as a loader's workers ask for them. Nothing here imports torch.

```
protocol     the messages between a worker and a server: requests, answers, and the description of a dataset
describing   computes that description from a dataset, on both sides
```

The servers are in `mpload.servers`.
"""

"""Work on the nodes of a Ray cluster: `mpload pack --on ray`, `mpload index --on ray`, and servers of samples.

```
cluster      RayCluster: runs jobs on the nodes, watches them, and kills them
connecting   connects to a cluster that refuses strangers, or starts one on this machine
tasks        what a node does for a job: checks that it sees the shared folder, then does it
servers      RayServers: servers of samples on the nodes, for the loaders of a training job
supervisor   the process that starts these servers, and replaces those that die
server       what a node does for a server
```

Only `servers`, and the process of a server, import torch.
"""

"""Jobs on the nodes of a Ray cluster: `mpload pack --on ray` and `mpload index --on ray`. Nothing here imports torch.

```
cluster      RayCluster: runs jobs on the nodes, watches them, and kills them
connecting   connects to a cluster that refuses strangers, or starts one on this machine
tasks        what a node does: checks that it sees the shared folder, then does one job
```
"""

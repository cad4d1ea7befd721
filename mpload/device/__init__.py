"""Batches on the device that trains, before they are asked for; with no accelerator the same runs on the CPU.

```
prefetcher  DevicePrefetcher: what users put around a loader
carrier     Carrier: over the bus into a landing buffer, converted into tensors that the user holds
streams     queues of work beside the consumer's: an accelerator's, or none
staging     batches as trees of values; Allotment, Arena: the memory that their tensors lie in
pinning     host memory that the driver copies from directly: the loader's slots, or a copy
normalise   Normaliser: uint8 to a normalised dtype in one pass
seeding     PerSample: random numbers of torch that belong to a batch or a sample
unpacking   images that `GpuDecode` left to the device
```
"""

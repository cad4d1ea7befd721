"""Copies batches to the training device ahead of time. Without an accelerator, the same code runs on the CPU.

```
prefetcher     DevicePrefetcher: wraps a loader; the class for users
sent           batches on their way to the consumer, or the errors of those that failed
carrier        Carrier: copies batches over the bus to a landing buffer, and converts them to the tensors users receive
streams        side streams: queues of device work besides the consumer's
staging        batches as trees of values; Allotment and Arena, the memory of their tensors
pinning        Pinner: page-locks the loader's slots, so that the device can copy from them directly
normalise      Normaliser: converts uint8 pixels to a normalised dtype in one pass
seeding        PerSample: torch random numbers that depend only on the batch or the sample
lookahead      Lookahead: takes batches from the loader, one ahead while a thread decodes images
unpacking      Unpacker: decodes images that `GpuDecode` left to the device
jpeg_decoders  the JPEG decoders of the device, which nvImageCodec and torchvision bring
drawing        crops, resizes and mirrors the decoded images, several kernels for each
kernels        whether Triton can compile the two kernels below; without it, torch's kernels do the work
view_kernel    draws the views of a whole batch with one kernel
convert_kernel converts large batches faster than torch's kernels
```
"""

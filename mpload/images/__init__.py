"""From bytes to pixels.

```
image       one image's bytes: format, size and limits, known before a pixel is decoded
jpeg        JPEG: the native decoder, else simplejpeg, last OpenCV
resize      which part of an image is shown, and how its pixels are mixed
decoders    what users pass as decode=: RandomResizedCrop, ResizeCenterCrop, ImageDecoder, RawBytes, NumpyDecoder
gpu_decode  GpuDecode: the worker chooses the crop, the device decodes
shrink      smaller JPEGs, for packs and caches
_jpeg       the native decoder (C, optional)
```
"""

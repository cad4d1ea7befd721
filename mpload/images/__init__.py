"""From bytes to pixels.

```
image        one image's bytes: its format and size, known before a pixel is decoded
claims       memory that a decoder asks for before it takes it
limits       Limits: which files are refused
jpeg         JPEG: the native decoder, else simplejpeg, last OpenCV
jpeg_header  what stands before the picture: its size, its orientation
resize       which part of an image is shown, and how its pixels are mixed
decoders     what users pass as decode=: RandomResizedCrop, ResizeCenterCrop, ImageDecoder, RawBytes, NumpyDecoder
gpu_decode   GpuDecode: the worker chooses the crop, the device decodes
shrink       smaller JPEGs, for packs and caches
_jpeg        the native decoder (C, optional)
```
"""

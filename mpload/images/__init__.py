"""Decodes images: from a file's bytes to pixels.

```
image            open_image: finds an image's format and size before it decodes a pixel
claims           Claim: how a decoder requests memory before it allocates it
limits           Limits: which files are refused
checks           checks of arguments that several decoders have
backends         the decoders of JPEGs that are installed: the native module and simplejpeg
jpeg             decodes JPEG with the native decoder, otherwise with simplejpeg or OpenCV
pnm              decodes PGM and PPM, of Netpbm
bmp              decodes BMPs whose headers say which bits hold which colour
tiff             reads the tags of a TIFF, and finds that parts of it are missing
jpeg_header      reads size and orientation from a JPEG's header
row_starts       RowStarts: keeps where the rows of a JPEG begin
opencv           OpenCV, imported when it is first used
arrays           RawArray: samples that are the bytes of an array
resize           View: the part of an image to show; resizes it
crops            the part of an image that a random or centred crop shows
geometry         Geometry: the part of a sample's image that is shown, which all its columns follow
parts            decodes what several views show once, for each scale that they need
decoders         the values of decode=: RandomResizedCrop, ResizeCenterCrop, ImageDecoder, RawBytes, NumpyDecoder
stored_values    reads the numbers that an image file stores, such as class ids
mask             Mask: one value per pixel, which follows the crop of the image
letterbox        Letterbox: the whole image, scaled to fit and padded
pil              PilTransform: decodes an image and calls a transform of PIL images
patches          RandomCrop: a patch of the image, not resized
many             decodes the samples of a whole chunk with one native call
many_geometries  the geometries of many samples as numbers, for native calls
many_masks       decodes the masks of a whole chunk with one native call
crops_of_photo   CropsOfPhoto: makes several crops of a photo with one native call
gpu_decode       GpuDecode: the worker chooses the crop, the device decodes
shrink           makes smaller JPEGs, for packs and caches
baseline         rewrites JPEGs without loss, so that they decode faster
_jpeg            the native decoder (C, optional): its Python module
_jpeg_crops      the functions of that module that make several crops of a photo (C)
_decoder         decodes a part of a JPEG through libjpeg-turbo (C)
_scale           decodes the rows and columns that views of one scale need (C)
_together        decodes several views in one pass (C)
_huffman         decodes Huffman codes faster than libjpeg-turbo (C)
_huffman_scan    prepares the Huffman decoder for a scan (C)
_huffman_shared  decodes a scan once for several scales (C)
_huffman_two     decodes the scans of two photos in turn (C)
_huffman_tables  tables that decode several codes at a time (C)
_huffman_test    the self-test: compares the pixels with libjpeg-turbo's (C)
_rows            the entry that tells where rows begin (C)
_resize          resizes those rows (C)
_resize_simd     faster loops for it, with AVX2, SSE2 or NEON instructions (C)
_resize_avx512   one with AVX-512 instructions (C)
_lanes           decodes many photos with one call, two at a time (C)
_photos          decodes one of them as the decoders do (C)
_crops           decodes several crops of one (C)
_header          reads a JPEG's header as jpeg_header does (C)
_philox          draws a sample's random numbers as SampleRng does (C)
_crop            chooses the parts that crops show as crops and decoders do (C)
_transcode       what rewrites JPEGs (C, optional): its Python module
_coefficients    reads and writes a JPEG's coefficients through libjpeg-turbo (C)
_masks           many masks (C, optional): its Python module
_mask_png        decodes a PNG with one channel through libdeflate (C)
_mask_nearest    picks the pixels of a mask that a crop shows as geometry does (C)
_mask_avx512     picks and writes them with AVX-512 instructions (C)
```
"""

/* What the files of the Python module `mpload.images._jpeg` share. */

#ifndef MPLOAD_JPEG_MODULE_H
#define MPLOAD_JPEG_MODULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_photos.h"

typedef struct {
    Decoder *at_rest;   /* list of idle decoders; guarded by the GIL */
    int with_huffman;   /* whether decoders use mpload's Huffman decoder */
    Simd simd;
} State;

/* Returns NULL if memory runs out. */
Decoder *take_decoder(State *state);
void put_back(State *state, Decoder *decoder);

/* Read a crop's numbers, as `decode_many` takes them. Returns 0, with an error, if they are not such numbers. */
int read_crop(PyObject *from, Photos *photos, RandomCrop *random);

/* The buffer as an array of `count` int64; NULL, with an error, if it is not one. */
void *as_int64(const Py_buffer *buffer, Py_ssize_t count);

/* _jpeg_crops.c */

extern const char crops_of_photo_doc[], crops_of_photos_doc[];
PyObject *crops_of_photo(PyObject *module, PyObject *args);
PyObject *crops_of_photos(PyObject *module, PyObject *args);

#endif

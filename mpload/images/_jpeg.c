/* The Python module `mpload.images._jpeg`. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "_decoder.h"
#include "_huffman.h"
#include "_jpeg_module.h"
#include "_photos.h"

Decoder *take_decoder(State *state) {
    Decoder *decoder = state->at_rest;
    if (decoder != NULL) {
        state->at_rest = decoder->next;
    } else if ((decoder = new_decoder(state->with_huffman)) != NULL) {
        decoder->simd = state->simd;
    }
    return decoder;
}

void put_back(State *state, Decoder *decoder) {
    decoder->next = state->at_rest;
    state->at_rest = decoder;
}

/* None, or the entry that was made. */
static PyObject *made_entry(const Decoder *decoder) {
    const Rows *rows = decoder->huffman == NULL ? NULL : &decoder->huffman->rows;
    if (rows == NULL || rows->entry_bytes == 0) {
        return Py_NewRef(Py_None);
    }
    return PyBytes_FromStringAndSize((const char *)rows->entry, (Py_ssize_t)rows->entry_bytes);
}

/* Take the size of the result from `out`. Returns 0, with an error, if a number is out of range. */
static int complete_view(const Py_buffer *out, View *view) {
    if (out->ndim != 3 || out->itemsize != 1 || out->shape[2] != 3 || out->shape[0] > MAX_SIDE
        || out->shape[1] > MAX_SIDE) {
        PyErr_SetString(PyExc_ValueError, "out must be uint8 [height, width, 3]");
        return 0;
    }
    view->out_height = (int)out->shape[0];
    view->out_width = (int)out->shape[1];
    if (!is_view(view)) {
        PyErr_SetString(PyExc_ValueError, "a number of the view is out of range");
        return 0;
    }
    return 1;
}

/* `entry->buf` is NULL if no entry is wanted. */
static PyObject *write_pixels(PyObject *module, Py_buffer *data, Py_buffer *out, View *view, Py_buffer *entry) {
    if (!complete_view(out, view)) {
        return NULL;
    }
    State *state = PyModule_GetState(module);
    Decoder *decoder = take_decoder(state);
    if (decoder == NULL) {
        return PyErr_NoMemory();
    }
    int done;
    Py_BEGIN_ALLOW_THREADS
    if (entry->buf == NULL) {
        done = decode_view(decoder, data->buf, (size_t)data->len, view, out->buf);
    } else {
        done = decode_view_with_rows(
            decoder, data->buf, (size_t)data->len, view, entry->buf, (size_t)entry->len, out->buf);
    }
    Py_END_ALLOW_THREADS
    PyObject *result = !done ? PyUnicode_DecodeLocale(decoder->cause, "surrogateescape")
        : entry->buf == NULL ? Py_NewRef(Py_None) : made_entry(decoder);
    put_back(state, decoder);
    return result;
}

static int read_ints(PyObject *tuple, Py_ssize_t count, int *const *ints) {
    if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != count) {
        PyErr_Format(PyExc_TypeError, "a tuple of %zd integers is wanted, got %R", count, tuple);
        return 0;
    }
    for (Py_ssize_t place = 0; place < count; place++) {
        long value = PyLong_AsLong(PyTuple_GetItem(tuple, place));
        if (value == -1 && PyErr_Occurred()) {
            return 0;
        }
        *ints[place] = value < 0 || value > INT_MAX ? -1 : (int)value;  /* `is_view` refuses negative numbers */
    }
    return 1;
}

static int read_view(PyObject *from, View *view) {  /* faster than nested formats of PyArg_ParseTuple */
    PyObject *size, *box, *full, *corner;
    return PyArg_ParseTuple(
            from, "OiOOOpp:StoredView", &size, &view->denominator, &box, &full, &corner, &view->mirror,
            &view->antialias)
        && read_ints(size, 2, (int *[]){&view->stored_height, &view->stored_width})
        && read_ints(box, 4, (int *[]){&view->top, &view->left, &view->height, &view->width})
        && read_ints(full, 2, (int *[]){&view->full_height, &view->full_width})
        && read_ints(corner, 2, (int *[]){&view->out_top, &view->out_left});
}

PyDoc_STRVAR(decode_doc,
"decode(data, view, out, entry=None)\n--\n\n"
"Write a view of a JPEG, a `mpload.images.backends.StoredView`, to `out`, uint8 [height, width, 3], C-contiguous.\n\n"
"Returns None, or the reason if the file is declined; the contents of `out` are then undefined.\n\n"
"With an `entry` of the same photo, rows above the view are not decoded. If it is of another photo, damaged or empty,\n"
"a new entry, bytes, is returned instead of None where one can be made.");

static PyObject *decode(PyObject *module, PyObject *args) {
    Py_buffer data, out, entry = {0};
    View view;
    PyObject *numbers, *target, *result = NULL;
    if (!PyArg_ParseTuple(args, "y*O!O|z*:decode", &data, &PyTuple_Type, &numbers, &target, &entry)) {
        return NULL;
    }
    if (read_view(numbers, &view) && PyObject_GetBuffer(target, &out, PyBUF_WRITABLE | PyBUF_ND) == 0) {
        result = write_pixels(module, &data, &out, &view, &entry);
        PyBuffer_Release(&out);
    }
    PyBuffer_Release(&entry);
    PyBuffer_Release(&data);
    return result;
}

/* Decode parts of a photo; return None, or the reason for declining it. */
static PyObject *write_parts(PyObject *module, const Py_buffer *data, const View *views, uint8_t *const *outs, size_t count) {
    State *state = PyModule_GetState(module);
    Decoder *decoder = take_decoder(state);
    if (decoder == NULL) {
        return PyErr_NoMemory();
    }
    int done;
    Py_BEGIN_ALLOW_THREADS
    done = decode_views(decoder, data->buf, (size_t)data->len, views, outs, count);
    Py_END_ALLOW_THREADS
    PyObject *result = done ? Py_NewRef(Py_None) : PyUnicode_DecodeLocale(decoder->cause, "surrogateescape");
    put_back(state, decoder);
    return result;
}

PyDoc_STRVAR(decode_parts_doc,
"decode_parts(data, views, outs)\n--\n\n"
"Write several views of one JPEG, one for each scale, as `decode` does, with less work. `views` and `outs` are tuples.");

static PyObject *decode_parts(PyObject *module, PyObject *args) {
    Py_buffer data, buffers[NUM_SCALES];
    View views[NUM_SCALES];
    uint8_t *outs[NUM_SCALES];
    PyObject *numbers, *targets, *result = NULL;
    if (!PyArg_ParseTuple(args, "y*O!O!:decode_parts", &data, &PyTuple_Type, &numbers, &PyTuple_Type, &targets)) {
        return NULL;
    }
    Py_ssize_t count = PyTuple_Size(numbers), taken = 0;
    int is_legal = count <= NUM_SCALES && PyTuple_Size(targets) == count;
    if (!is_legal) {
        PyErr_Format(PyExc_ValueError, "at most %d views are wanted, and an array for each", NUM_SCALES);
    }
    while (is_legal && taken < count) {
        Py_buffer *out = &buffers[taken];
        PyObject *view = PyTuple_GetItem(numbers, taken);
        if (!PyTuple_Check(view)) {
            PyErr_SetString(PyExc_TypeError, "a view must be a StoredView");
            break;
        }
        if (!read_view(view, &views[taken])
            || PyObject_GetBuffer(PyTuple_GetItem(targets, taken), out, PyBUF_WRITABLE | PyBUF_ND) != 0) {
            break;
        }
        is_legal = complete_view(out, &views[taken]);
        outs[taken++] = out->buf;
    }
    if (is_legal && taken == count) {
        result = write_parts(module, &data, views, outs, (size_t)count);
    }
    while (taken > 0) {
        PyBuffer_Release(&buffers[--taken]);
    }
    PyBuffer_Release(&data);
    return result;
}

static PyObject *resize_pixels(PyObject *module, Py_buffer *pixels, Py_buffer *out, View *view) {
    if (!complete_view(out, view)) {
        return NULL;
    }
    if (pixels->len < PADDING_BYTES
        || (uint64_t)pixels->len - PADDING_BYTES < (uint64_t)view->stored_height * (uint64_t)view->stored_width * 3) {
        PyErr_SetString(PyExc_ValueError, "pixels must be uint8 [height * width * 3 + PADDING_BYTES]");
        return NULL;
    }
    State *state = PyModule_GetState(module);
    Decoder *decoder = take_decoder(state);
    if (decoder == NULL) {
        return PyErr_NoMemory();
    }
    int done;
    Py_BEGIN_ALLOW_THREADS
    done = resize_view(decoder, pixels->buf, view, out->buf);
    Py_END_ALLOW_THREADS
    PyObject *result = done ? Py_NewRef(Py_None) : PyUnicode_DecodeLocale(decoder->cause, "surrogateescape");
    put_back(state, decoder);
    return result;
}

PyDoc_STRVAR(resize_doc,
"resize(pixels, view, out)\n--\n\n"
"Write a view to `out` as `decode` does, but of decoded pixels: uint8 RGB [height, width, 3] and PADDING_BYTES more.\n\n"
"The view, a `mpload.images.backends.StoredView`, gives their size; its denominator is ignored.\n\n"
"Returns None, or the reason if the view is declined; the contents of `out` are then undefined.");

static PyObject *resize(PyObject *module, PyObject *args) {
    Py_buffer pixels, out;
    View view;
    PyObject *numbers, *target, *result = NULL;
    if (!PyArg_ParseTuple(args, "y*O!O:resize", &pixels, &PyTuple_Type, &numbers, &target)) {
        return NULL;
    }
    if (read_view(numbers, &view) && PyObject_GetBuffer(target, &out, PyBUF_WRITABLE | PyBUF_ND) == 0) {
        result = resize_pixels(module, &pixels, &out, &view);
        PyBuffer_Release(&out);
    }
    PyBuffer_Release(&pixels);
    return result;
}

/* The buffers of `decode_many`, in the order of its arguments. */
enum { AREA, STARTS, LENGTHS, SAMPLE_IDS, ENTRIES, ENTRY_BOUNDS, OUT, IS_MADE, NEXT, GEOMETRIES, NUM_BUFFERS };

void *as_int64(const Py_buffer *buffer, Py_ssize_t count) {
    if (buffer->len != count * (Py_ssize_t)sizeof(int64_t) || (uintptr_t)buffer->buf % sizeof(int64_t) != 0) {
        PyErr_Format(PyExc_ValueError, "int64 [%zd] is wanted, got %zd bytes, or a misaligned array", count, buffer->len);
        return NULL;
    }
    return buffer->buf;
}

static int read_buffers(Py_buffer *buffers, Photos *photos) {
    const Py_buffer *out = &buffers[OUT];
    if (out->ndim != 4 || out->itemsize != 1 || out->shape[3] != 3 || out->shape[1] < 1 || out->shape[1] > MAX_SIDE
        || out->shape[2] < 1 || out->shape[2] > MAX_SIDE || buffers[IS_MADE].len != out->shape[0]) {
        PyErr_SetString(PyExc_ValueError, "out must be uint8 [n, height, width, 3], and is_made uint8 [n]");
        return 0;
    }
    Py_ssize_t count = out->shape[0];
    photos->count = (size_t)count;
    photos->size[0] = (int)out->shape[1];
    photos->size[1] = (int)out->shape[2];
    photos->area = buffers[AREA].buf;
    photos->area_bytes = (size_t)buffers[AREA].len;
    photos->entries = buffers[ENTRIES].buf;
    photos->entries_bytes = (size_t)buffers[ENTRIES].len;
    photos->out = out->buf;
    photos->is_made = buffers[IS_MADE].buf;
    return (photos->starts = as_int64(&buffers[STARTS], count)) != NULL
        && (photos->lengths = as_int64(&buffers[LENGTHS], count)) != NULL
        && (photos->sample_ids = as_int64(&buffers[SAMPLE_IDS], count)) != NULL
        && (photos->entries == NULL
            || (photos->entry_bounds = as_int64(&buffers[ENTRY_BOUNDS], 2 * count)) != NULL)
        && (buffers[NEXT].obj == NULL || (photos->next = as_int64(&buffers[NEXT], 1)) != NULL)
        && (buffers[GEOMETRIES].obj == NULL
            || (photos->geometries = as_int64(&buffers[GEOMETRIES], NUM_GEOMETRY * count)) != NULL);
}

int read_crop(PyObject *from, Photos *photos, RandomCrop *random) {
    if (PyTuple_Size(from) == 1) {
        return PyArg_ParseTuple(from, "i:ResizeCenterCrop", &photos->short_side);
    }
    photos->random = random;
    return PyArg_ParseTuple(
        from, "ddddddd:RandomResizedCrop", &random->scale[0], &random->scale[1], &random->ratio[0], &random->ratio[1],
        &random->log_ratio[0], &random->log_ratio[1], &random->flip);
}

/* Declines all photos if memory runs out. */
static void run_photos(PyObject *module, const Photos *photos) {
    State *state = PyModule_GetState(module);
    Decoder *decoder = take_decoder(state);
    int done = 0;
    if (decoder != NULL) {
        Py_BEGIN_ALLOW_THREADS
        done = decode_photos(decoder, photos);
        Py_END_ALLOW_THREADS
        put_back(state, decoder);
    }
    if (!done) {
        memset(photos->is_made, 0, photos->count);
    }
}

PyDoc_STRVAR(decode_many_doc,
"decode_many(area, starts, lengths, sample_ids, key, crop, antialias, upright, limits, entries,\n"
"            entry_bounds, out, is_made, next, first, geometries)\n"
"--\n\n"
"Decode many photos in `area` to `out`, uint8 [n, height, width, 3]; see mpload.images.many.\n\n"
"starts, lengths, sample_ids: int64 [n]; photos with a negative length are left out.\n"
"key: two integers below 2**64, of the random numbers.\n"
"crop: (scale[0], scale[1], ratio[0], ratio[1], log(ratio[0]), log(ratio[1]), flip), or (short_side,).\n"
"limits: (max_bytes, max_pixels, max_pixels_per_byte, max_scans).\n"
"entries, entry_bounds: entries of the row index, side by side, and int64 [n, 2], the start and length of each photo's:\n"
"a length of 0 if one is to be made, -1 to decode without; None, None without a row index.\n"
"is_made: uint8 [n], set to 1 for photos that were decoded, to 2 if their entry was wrong, and to 0 for all others.\n"
"next: int64 [1], which always holds `first` plus the number of a photo that is decoded now or next; or None.\n"
"geometries: int64 [n, 13], set for photos that were decoded, as mpload.images.many says; or None.");

static PyObject *decode_many(PyObject *module, PyObject *args) {
    Py_buffer buffers[NUM_BUFFERS];
    Photos photos;
    RandomCrop random;
    PyObject *crop, *out, *next, *geometries;
    unsigned long long key[2];
    long long limits[4], first;
    memset(buffers, 0, sizeof buffers);
    memset(&photos, 0, sizeof photos);
    if (!PyArg_ParseTuple(
            args, "y*y*y*y*(KK)O!pp(LLLL)z*z*Ow*OLO:decode_many", &buffers[AREA], &buffers[STARTS], &buffers[LENGTHS],
            &buffers[SAMPLE_IDS], &key[0], &key[1], &PyTuple_Type, &crop, &photos.antialias, &photos.is_upright,
            &limits[0], &limits[1], &limits[2], &limits[3], &buffers[ENTRIES],
            &buffers[ENTRY_BOUNDS], &out, &buffers[IS_MADE], &next, &first, &geometries)) {
        return NULL;  /* it has released the buffers */
    }
    photos.key[0] = key[0];
    photos.key[1] = key[1];
    photos.max_bytes = limits[0];
    photos.max_pixels = limits[1];
    photos.max_pixels_per_byte = limits[2];
    photos.max_scans = limits[3];
    photos.first = first;
    int done = read_crop(crop, &photos, &random) && PyObject_GetBuffer(out, &buffers[OUT], PyBUF_WRITABLE | PyBUF_ND) == 0
        && (next == Py_None || PyObject_GetBuffer(next, &buffers[NEXT], PyBUF_WRITABLE) == 0)
        && (geometries == Py_None || PyObject_GetBuffer(geometries, &buffers[GEOMETRIES], PyBUF_WRITABLE) == 0)
        && read_buffers(buffers, &photos);
    if (done) {
        run_photos(module, &photos);
    }
    for (int number = 0; number < NUM_BUFFERS; number++) {
        PyBuffer_Release(&buffers[number]);  /* does nothing for one that was not taken */
    }
    return done ? Py_NewRef(Py_None) : NULL;
}

static int start_module(PyObject *module) {
    State *state = PyModule_GetState(module);
    const char *without = getenv("MPLOAD_LIBJPEG_HUFFMAN");
    state->with_huffman = (without == NULL || strcmp(without, "1") != 0) && huffman_agrees();
    state->simd = best_simd(getenv("MPLOAD_SIMD"));
    char version[32];
    int number = LIBJPEG_TURBO_VERSION_NUMBER;  /* 2001005 is 2.1.5 */
    snprintf(version, sizeof version, "%d.%d.%d", number / 1000000, number / 1000 % 1000, number % 1000);
    if (PyModule_AddObjectRef(module, "WITH_HUFFMAN", state->with_huffman ? Py_True : Py_False) < 0
        || PyModule_AddIntConstant(module, "PADDING_BYTES", PADDING_BYTES) < 0
        || PyModule_AddStringConstant(module, "SIMD", simd_names[state->simd]) < 0) {
        return -1;
    }
    return PyModule_AddStringConstant(module, "LIBJPEG_TURBO_VERSION", version);
}

static void free_module(void *module) {
    State *state = PyModule_GetState(module);
    while (state != NULL && state->at_rest != NULL) {
        Decoder *decoder = state->at_rest;
        state->at_rest = decoder->next;
        free_decoder(decoder);
    }
}

static PyMethodDef methods[] = {
    {"decode", decode, METH_VARARGS, decode_doc},
    {"decode_crops", crops_of_photo, METH_VARARGS, crops_of_photo_doc},
    {"decode_crops_of_many", crops_of_photos, METH_VARARGS, crops_of_photos_doc},
    {"decode_many", decode_many, METH_VARARGS, decode_many_doc},
    {"decode_parts", decode_parts, METH_VARARGS, decode_parts_doc},
    {"resize", resize, METH_VARARGS, resize_doc},
    {NULL, NULL, 0, NULL},
};
static PyModuleDef_Slot slots[] = {{Py_mod_exec, start_module}, {0, NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "mpload.images._jpeg",
    .m_doc = "Parts of JPEGs, decoded and resized into the caller's pixels.",
    .m_size = sizeof(State),
    .m_methods = methods,
    .m_slots = slots,
    .m_free = free_module,
};

PyMODINIT_FUNC PyInit__jpeg(void) {
    return PyModuleDef_Init(&definition);
}

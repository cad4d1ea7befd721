/* The Python module `mpload.images._masks`. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdlib.h>
#include <string.h>

#include "_mask.h"

/* The buffers of `decode_many`, in the order of its arguments. */
enum { AREA, STARTS, LENGTHS, GEOMETRIES, OUT, IS_MADE, NEXT, NUM_BUFFERS };

typedef struct {
    const uint8_t *area;
    int64_t area_bytes;
    const int64_t *starts, *lengths, *geometries;
    Py_ssize_t count;
    int height, width, item_bytes, max_bits;
    MaskLimits limits;
    uint8_t *out, *is_made;
    int64_t *next, first;
} Masks;

static int decode_one(Mask *mask, const Masks *masks, Py_ssize_t number) {
    int64_t start = masks->starts[number], num_bytes = masks->lengths[number];
    size_t out_bytes = (size_t)masks->height * (size_t)masks->width * (size_t)masks->item_bytes;
    return start >= 0 && num_bytes > 0 && start <= masks->area_bytes && num_bytes <= masks->area_bytes - start
        && decode_png(mask, &masks->limits, masks->area + start, (size_t)num_bytes) && mask->bits <= masks->max_bits
        && show_mask(
               mask, masks->geometries + number * NUM_GEOMETRY, masks->height, masks->width, masks->item_bytes,
               masks->out + (size_t)number * out_bytes);
}

/* Declines all masks if memory runs out. */
static void decode_all(const Masks *masks) {
    Mask *mask = new_mask();
    for (Py_ssize_t number = 0; number < masks->count; number++) {
        if (masks->next != NULL) {
            __atomic_store_n(masks->next, masks->first + number, __ATOMIC_RELAXED);
        }
        masks->is_made[number] = mask != NULL && decode_one(mask, masks, number);
    }
    if (mask != NULL) {
        free_mask(mask);
    }
}

static void *as_int64(const Py_buffer *buffer, Py_ssize_t count) {
    if (buffer->len != count * (Py_ssize_t)sizeof(int64_t) || (uintptr_t)buffer->buf % sizeof(int64_t) != 0) {
        PyErr_Format(PyExc_ValueError, "int64 [%zd] is wanted, got %zd bytes, or a misaligned array", count, buffer->len);
        return NULL;
    }
    return buffer->buf;
}

static int read_buffers(const Py_buffer *buffers, Masks *masks) {
    const Py_buffer *out = &buffers[OUT];
    Py_ssize_t size = out->itemsize;
    if (out->ndim != 3 || (size != 1 && size != 2 && size != 4 && size != 8) || (uintptr_t)out->buf % (size_t)size != 0
        || out->shape[1] < 1 || out->shape[1] > MAX_MASK_SIDE || out->shape[2] < 1 || out->shape[2] > MAX_MASK_SIDE
        || buffers[IS_MADE].len != out->shape[0]) {
        PyErr_SetString(PyExc_ValueError, "out must be integers [n, height, width], and is_made uint8 [n]");
        return 0;
    }
    masks->count = out->shape[0];
    masks->height = (int)out->shape[1];
    masks->width = (int)out->shape[2];
    masks->item_bytes = (int)size;
    masks->area = buffers[AREA].buf;
    masks->area_bytes = buffers[AREA].len;
    masks->out = out->buf;
    masks->is_made = buffers[IS_MADE].buf;
    return (masks->starts = as_int64(&buffers[STARTS], masks->count)) != NULL
        && (masks->lengths = as_int64(&buffers[LENGTHS], masks->count)) != NULL
        && (masks->geometries = as_int64(&buffers[GEOMETRIES], masks->count * NUM_GEOMETRY)) != NULL
        && (buffers[NEXT].obj == NULL || (masks->next = as_int64(&buffers[NEXT], 1)) != NULL);
}

PyDoc_STRVAR(decode_many_doc,
"decode_many(area, starts, lengths, geometries, max_bits, limits, out, is_made, next, first)\n"
"--\n\n"
"Decode many PNGs in `area`, and write what their geometries show to `out`, integers [n, height, width].\n\n"
"starts, lengths: int64 [n]; masks with a negative length are left out.\n"
"geometries: int64 [n, 13]; see mpload.images.many.\n"
"max_bits: the number of bits that `out` can hold; masks with more bits for each pixel are declined.\n"
"limits: (max_bytes, max_pixels, max_pixels_per_byte).\n"
"is_made: uint8 [n], set to 1 for masks that were decoded, and to 0 for all others.\n"
"next: int64 [1], which always holds `first` plus the number of the mask that is next; or None.");

static PyObject *decode_many(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer buffers[NUM_BUFFERS];
    Masks masks;
    PyObject *out, *next;
    long long limits[3], first;
    memset(buffers, 0, sizeof buffers);
    memset(&masks, 0, sizeof masks);
    if (!PyArg_ParseTuple(
            args, "y*y*y*y*i(LLL)Ow*OL:decode_many", &buffers[AREA], &buffers[STARTS], &buffers[LENGTHS],
            &buffers[GEOMETRIES], &masks.max_bits, &limits[0], &limits[1], &limits[2], &out, &buffers[IS_MADE], &next,
            &first)) {
        return NULL;  /* it has released the buffers */
    }
    masks.limits = (MaskLimits){limits[0], limits[1], limits[2]};
    masks.first = first;
    int done = PyObject_GetBuffer(out, &buffers[OUT], PyBUF_WRITABLE | PyBUF_ND) == 0
        && (next == Py_None || PyObject_GetBuffer(next, &buffers[NEXT], PyBUF_WRITABLE) == 0)
        && read_buffers(buffers, &masks);
    if (done) {
        Py_BEGIN_ALLOW_THREADS
        decode_all(&masks);
        Py_END_ALLOW_THREADS
    }
    for (int number = 0; number < NUM_BUFFERS; number++) {
        PyBuffer_Release(&buffers[number]);  /* does nothing for one that was not taken */
    }
    return done ? Py_NewRef(Py_None) : NULL;
}

static PyMethodDef methods[] = {
    {"decode_many", decode_many, METH_VARARGS, decode_many_doc},
    {NULL, NULL, 0, NULL},
};
static PyModuleDef_Slot slots[] = {{0, NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "mpload.images._masks",
    .m_doc = "Masks in PNG files, decoded and cropped straight into the caller's array.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__masks(void) {
    return PyModuleDef_Init(&definition);
}

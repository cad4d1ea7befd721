/* The Python module `mpload.images._transcode`. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdlib.h>

#include "_coefficients.h"

enum { MAX_GROWTH = 2, SPARE_BYTES = 1 << 16 };  /* of a rewritten file; larger ones are declined */

PyDoc_STRVAR(count_doc,
"count(data, counts)\n--\n\n"
"Add the symbols of a JPEG to `counts`, int64 [4, 256], C-contiguous.\n\n"
"Returns False, and adds nothing, if the file is declined.");

static PyObject *count(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer data, counts;
    if (!PyArg_ParseTuple(args, "y*w*:count", &data, &counts)) {
        return NULL;
    }
    PyObject *result = NULL;
    if (counts.len != (Py_ssize_t)sizeof(Counts) || (uintptr_t)counts.buf % sizeof(int64_t) != 0) {
        PyErr_SetString(PyExc_ValueError, "counts must be int64 [4, 256]");
    } else {
        int counted;
        Py_BEGIN_ALLOW_THREADS
        counted = count_symbols(data.buf, (size_t)data.len, counts.buf);
        Py_END_ALLOW_THREADS
        result = PyBool_FromLong(counted);
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&counts);
    return result;
}

static PyObject *rewrite_bytes(const Py_buffer *data, const Table *tables) {
    size_t out_bytes = MAX_GROWTH * (size_t)data->len + SPARE_BYTES;
    uint8_t *out = malloc(out_bytes);
    if (out == NULL) {
        return PyErr_NoMemory();
    }
    size_t written_bytes;
    Py_BEGIN_ALLOW_THREADS
    written_bytes = rewrite(data->buf, (size_t)data->len, tables, out, out_bytes);
    Py_END_ALLOW_THREADS
    PyObject *result = written_bytes == 0
        ? Py_NewRef(Py_None) : PyBytes_FromStringAndSize((const char *)out, (Py_ssize_t)written_bytes);
    free(out);
    return result;
}

PyDoc_STRVAR(transcode_doc,
"transcode(data, tables)\n--\n\n"
"Return a JPEG as baseline JPEG with the same coefficients and the same markers in its header.\n\n"
"`tables` is the contents of a DHT segment: the DC and the AC table of luma, then those of chroma. Returns None if the\n"
"file is declined.");

static PyObject *transcode(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer data, segment;
    if (!PyArg_ParseTuple(args, "y*y*:transcode", &data, &segment)) {
        return NULL;
    }
    PyObject *result = NULL;
    Table tables[NUM_KINDS];
    if (!read_tables(segment.buf, (size_t)segment.len, tables)) {
        PyErr_SetString(PyExc_ValueError, "tables must be the contents of a DHT segment with four tables");
    } else {
        result = rewrite_bytes(&data, tables);
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&segment);
    return result;
}

static PyMethodDef methods[] = {
    {"count", count, METH_VARARGS, count_doc},
    {"transcode", transcode, METH_VARARGS, transcode_doc},
    {NULL, NULL, 0, NULL},
};
static PyModuleDef_Slot slots[] = {{0, NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "mpload.images._transcode",
    .m_doc = "JPEGs written again with other Huffman tables.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__transcode(void) {
    return PyModuleDef_Init(&definition);
}

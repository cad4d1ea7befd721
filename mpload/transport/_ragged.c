/* Ragged fields of many samples at once: `mpload.transport.ragged` explains them. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

enum { ALIGN_BYTES = 64 };

static int has_items(const Py_buffer *buffer, int64_t num_items) {
    return buffer->len == num_items * (Py_ssize_t)sizeof(int64_t) && (uintptr_t)buffer->buf % sizeof(int64_t) == 0;
}

static int lies_in(int64_t start, int64_t size, int64_t num_bytes) {
    return start >= 0 && size >= 0 && start <= num_bytes && size <= num_bytes - start;
}

static int64_t copy_pieces(
    const char *data, int64_t num_bytes, const int64_t *bounds, int64_t n, char *area, int64_t area_bytes,
    int64_t max_bytes, int64_t *starts, int64_t *sizes) {
    int64_t next = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t start = bounds[2 * i], end = bounds[2 * i + 1];
        int64_t size = start >= 0 && start <= end && end <= num_bytes ? end - start : -1;
        starts[i] = next;
        sizes[i] = -1;
        if (size <= max_bytes && lies_in(next, size, area_bytes)) {
            memcpy(area + next, data + start, (size_t)size);
            sizes[i] = size;
            next += (size + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
        }
    }
    return next;
}

PyDoc_STRVAR(put_doc,
"put(data, bounds, area, max_bytes, starts, sizes)\n--\n\n"
"Copy pieces of `data` into `area`, and return the size of its used part.\n\n"
"`bounds`, int64 [n, 2], holds the start and end of each piece. The start of its copy is written to `starts`, int64 [n],\n"
"and its size to `sizes`, int64 [n]; -1 where there is no such piece, or no room for it.");

static PyObject *put(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer data, bounds, area, starts, sizes;
    long long max_bytes;
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "y*y*w*Lw*w*:put", &data, &bounds, &area, &max_bytes, &starts, &sizes)) {
        return NULL;
    }
    int64_t n = starts.len / (Py_ssize_t)sizeof(int64_t), used = 0;
    if (!has_items(&starts, n) || !has_items(&sizes, n) || !has_items(&bounds, 2 * n)) {
        PyErr_SetString(PyExc_ValueError, "bounds must be int64 [n, 2], starts and sizes int64 [n]");
    } else {
        Py_BEGIN_ALLOW_THREADS
        used = copy_pieces(
            data.buf, data.len, bounds.buf, n, area.buf, area.len, max_bytes, starts.buf, sizes.buf);
        Py_END_ALLOW_THREADS
        result = PyLong_FromLongLong(used);
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&bounds);
    PyBuffer_Release(&area);
    PyBuffer_Release(&starts);
    PyBuffer_Release(&sizes);
    return result;
}

static PyObject *list_of(const Py_buffer *area, const int64_t *starts, const int64_t *sizes, int64_t n, int is_text) {
    PyObject *list = PyList_New((Py_ssize_t)n);
    for (int64_t i = 0; list != NULL && i < n; i++) {
        PyObject *value = NULL;
        if (!lies_in(starts[i], sizes[i], area->len)) {
            PyErr_Format(PyExc_ValueError, "sample %lld lies outside of the area", (long long)i);
        } else {
            const char *bytes = (const char *)area->buf + starts[i];
            value = is_text ? PyUnicode_DecodeUTF8(bytes, (Py_ssize_t)sizes[i], "surrogateescape")
                            : PyBytes_FromStringAndSize(bytes, (Py_ssize_t)sizes[i]);
        }
        if (value == NULL || PyList_SetItem(list, (Py_ssize_t)i, value) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

PyDoc_STRVAR(values_doc,
"values(area, starts, sizes, is_text)\n--\n\n"
"Return the pieces of `area` as a list of `bytes`, or of `str`.\n\n"
"`starts` and `sizes`, int64 [n], say where each piece lies.");

static PyObject *values(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer area, starts, sizes;
    int is_text;
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "y*y*y*p:values", &area, &starts, &sizes, &is_text)) {
        return NULL;
    }
    int64_t n = starts.len / (Py_ssize_t)sizeof(int64_t);
    if (!has_items(&starts, n) || !has_items(&sizes, n)) {
        PyErr_SetString(PyExc_ValueError, "starts and sizes must be int64 [n]");
    } else {
        result = list_of(&area, starts.buf, sizes.buf, n, is_text);
    }
    PyBuffer_Release(&area);
    PyBuffer_Release(&starts);
    PyBuffer_Release(&sizes);
    return result;
}

/* Return the number of pieces that were copied; the next one lies outside of the area, or has no room. */
static int64_t gather_pieces(
    const char *area, int64_t area_bytes, const int64_t *starts, const int64_t *sizes, int64_t n, char *out,
    int64_t out_bytes) {
    int64_t next = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!lies_in(starts[i], sizes[i], area_bytes) || sizes[i] > out_bytes - next) {
            return i;
        }
        memcpy(out + next, area + starts[i], (size_t)sizes[i]);
        next += sizes[i];
    }
    return n;
}

PyDoc_STRVAR(gather_doc,
"gather(area, starts, sizes, out)\n--\n\n"
"Copy pieces of `area` end to end to `out`.\n\n"
"`starts` and `sizes`, int64 [n], say where each piece lies.");

static PyObject *gather(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer area, starts, sizes, out;
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "y*y*y*w*:gather", &area, &starts, &sizes, &out)) {
        return NULL;
    }
    int64_t n = starts.len / (Py_ssize_t)sizeof(int64_t), done;
    if (!has_items(&starts, n) || !has_items(&sizes, n)) {
        PyErr_SetString(PyExc_ValueError, "starts and sizes must be int64 [n]");
    } else {
        Py_BEGIN_ALLOW_THREADS
        done = gather_pieces(area.buf, area.len, starts.buf, sizes.buf, n, out.buf, out.len);
        Py_END_ALLOW_THREADS
        if (done == n) {
            result = Py_NewRef(Py_None);
        } else {
            PyErr_Format(PyExc_ValueError, "sample %lld lies outside of the area, or has no room", (long long)done);
        }
    }
    PyBuffer_Release(&area);
    PyBuffer_Release(&starts);
    PyBuffer_Release(&sizes);
    PyBuffer_Release(&out);
    return result;
}

static PyMethodDef methods[] = {
    {"gather", gather, METH_VARARGS, gather_doc},
    {"put", put, METH_VARARGS, put_doc},
    {"values", values, METH_VARARGS, values_doc},
    {NULL, NULL, 0, NULL},
};
static PyModuleDef_Slot slots[] = {{0, NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "mpload.transport._ragged",
    .m_doc = "Ragged fields of many samples at once.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__ragged(void) {
    return PyModuleDef_Init(&definition);
}

/* The Python module `mpload.index._lines`. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <sys/stat.h>

#include "_lines.h"

enum { MAX_COLUMNS = 1 << 16 };

/* Get a C-contiguous array of int64, or of bytes, with `num_items` items, or with any number if that is negative. */
static int get_array(PyObject *from, Py_buffer *array, int is_writable, Py_ssize_t item_bytes, Py_ssize_t num_items) {
    if (PyObject_GetBuffer(from, array, PyBUF_ND | (is_writable ? PyBUF_WRITABLE : 0)) < 0) {
        return 0;
    }
    if (array->itemsize == item_bytes && (num_items < 0 || array->len == num_items * item_bytes)) {
        return 1;
    }
    PyErr_Format(PyExc_ValueError, "an array has %zd bytes in items of %zd, %zd items of %zd are wanted", array->len,
                 array->itemsize, num_items, item_bytes);
    PyBuffer_Release(array);
    return 0;
}

static int is_read_in_full(const Files *files, Plan *plan, PyObject *result, int64_t *bounds) {
    int is_read;
    char *bytes = PyBytes_AsString(result);
    Py_BEGIN_ALLOW_THREADS
    is_read = read_lines(files, plan, bytes, bounds);
    Py_END_ALLOW_THREADS
    return is_read;
}

static PyObject *planned_and_read(const Files *files, const Py_buffer *sample_ids, int64_t *bounds) {
    Plan plan;
    int is_planned;
    Py_BEGIN_ALLOW_THREADS
    is_planned = plan_lines(files, sample_ids->buf, (size_t)(sample_ids->len / 8), bounds, &plan);
    Py_END_ALLOW_THREADS
    PyObject *result = is_planned ? PyBytes_FromStringAndSize(NULL, (Py_ssize_t)plan.num_bytes) : Py_NewRef(Py_None);
    if (is_planned && result != NULL && !is_read_in_full(files, &plan, result, bounds)) {
        Py_DECREF(result);
        result = Py_NewRef(Py_None);
    }
    free_plan(&plan);
    return result == NULL || result == Py_None ? result : Py_BuildValue("Nn", result, (Py_ssize_t)plan.num_missed);
}

/* Get the maps of the text and the sidecar, which must be as large as the files are said to be: None if they are not
   mapped. */
static int get_maps(PyObject *from, Files *files, Py_buffer *maps) {
    struct stat facts;
    PyObject *text, *sidecar;
    if (from == Py_None) {
        return 1;
    }
    if (!PyArg_ParseTuple(from, "OO:maps", &text, &sidecar) || PyObject_GetBuffer(text, &maps[0], PyBUF_SIMPLE) < 0
        || PyObject_GetBuffer(sidecar, &maps[1], PyBUF_SIMPLE) < 0) {
        return 0;
    }
    if (maps[0].len == files->text_bytes && fstat(files->sidecar, &facts) == 0 && facts.st_size >= maps[1].len) {
        files->text_map = maps[0].buf;
        files->sidecar_map = maps[1].buf;
        files->sidecar_bytes = maps[1].len;
    }
    return 1;
}

static int read_files(PyObject *from, Files *files) {
    long long numbers[6];
    unsigned long long text_mtime_ns;
    if (!PyArg_ParseTuple(from, "iiLLLLLLK:files", &files->text, &files->sidecar, &numbers[0], &numbers[1], &numbers[2],
                          &numbers[3], &numbers[4], &numbers[5], &text_mtime_ns)) {
        return 0;
    }
    files->num_samples = numbers[0];
    files->first_bytes = numbers[1];
    files->stride_bytes = numbers[2];
    files->last_bytes = numbers[3];
    files->body_bytes = numbers[4];
    files->text_bytes = numbers[5];
    files->text_mtime_ns = text_mtime_ns;
    return 1;
}

PyDoc_STRVAR(read_doc,
"read(files, maps, sample_ids, bounds)\n--\n\n"
"Return bytes that contain the lines of `sample_ids`, int64 [n], and the number of reads that the page cache could not\n"
"serve. Sets `bounds`, int64 [n, 2], to where each line starts and ends in the bytes. Returns None if anything is\n"
"unusual, for example if a file has changed.\n\n"
"`files` is a tuple of integers: the descriptors of the text and the sidecar; the number of samples; where the sidecar\n"
"holds the offsets of the lines (first record batch, stride, last record batch); offset of the first line; size and\n"
"modification time of the text. `maps` is a tuple of the mapped text and the mapped sidecar, or None.");

static PyObject *read_(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *numbers, *mapped, *from, *to, *result = NULL;
    Files files = {0};
    Py_buffer sample_ids, bounds, maps[2] = {{0}};
    if (!PyArg_ParseTuple(args, "O!OOO:read", &PyTuple_Type, &numbers, &mapped, &from, &to)
        || !read_files(numbers, &files)) {
        return NULL;
    }
    if (!get_maps(mapped, &files, maps) || !get_array(from, &sample_ids, 0, 8, -1)) {
        goto release;
    }
    if (get_array(to, &bounds, 1, 8, sample_ids.len / 4)) {
        result = planned_and_read(&files, &sample_ids, bounds.buf);
        PyBuffer_Release(&bounds);
    }
    PyBuffer_Release(&sample_ids);
release:
    PyBuffer_Release(&maps[0]);
    PyBuffer_Release(&maps[1]);
    return result;
}

PyDoc_STRVAR(ask_doc,
"ask(files, sample_ids)\n--\n\n"
"Ask the kernel to load the lines of `sample_ids`, int64 [n], into the page cache, without waiting. Returns the number of\n"
"reads that the page cache could not serve. Lines whose rows of the sidecar are loading must be asked for again.");

static PyObject *ask(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *numbers, *from;
    Files files = {0};
    Py_buffer sample_ids;
    if (!PyArg_ParseTuple(args, "O!O:ask", &PyTuple_Type, &numbers, &from) || !read_files(numbers, &files)
        || !get_array(from, &sample_ids, 0, 8, -1)) {
        return NULL;
    }
    size_t num_missed;
    Py_BEGIN_ALLOW_THREADS
    num_missed = ask_for_lines(&files, sample_ids.buf, (size_t)(sample_ids.len / 8));
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&sample_ids);
    return PyLong_FromSize_t(num_missed);
}

PyDoc_STRVAR(split_doc,
"split(data, bounds, num_columns, cells)\n--\n\n"
"Set `cells`, int64 [n, num_columns, 2], to where the cells of the lines with these `bounds`, int64 [n, 2], start and\n"
"end in `data`. They are -1 in lines with escapes, NUL, CR, or another number of cells.");

static PyObject *split(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *from, *to, *result = NULL;
    Py_buffer data, bounds, cells;
    int num_columns;
    if (!PyArg_ParseTuple(args, "y*OiO:split", &data, &from, &num_columns, &to)) {
        return NULL;
    }
    if (num_columns < 1 || num_columns > MAX_COLUMNS) {
        PyErr_Format(PyExc_ValueError, "num_columns must be in [1, %d], got %d", MAX_COLUMNS, num_columns);
    } else if (get_array(from, &bounds, 0, 8, -1)) {
        Py_ssize_t num_lines = bounds.len / 16;
        if (get_array(to, &cells, 1, 8, 2 * num_columns * num_lines)) {
            Py_BEGIN_ALLOW_THREADS
            split_lines(data.buf, data.len, bounds.buf, (size_t)num_lines, (size_t)num_columns, cells.buf);
            Py_END_ALLOW_THREADS
            result = Py_NewRef(Py_None);
            PyBuffer_Release(&cells);
        }
        PyBuffer_Release(&bounds);
    }
    PyBuffer_Release(&data);
    return result;
}

/* Return whether the cell with these bounds lies in the data. */
static int has_cell(const Py_buffer *data, const int64_t *cell) {
    return cell[0] >= 0 && cell[0] <= cell[1] && cell[1] <= data->len;
}

PyDoc_STRVAR(integers_doc,
"integers(data, cells, values, is_parsed)\n--\n\n"
"Parse the integers in `cells`, int64 [n, 2], of `data` into `values`, int64 [n]. Sets `is_parsed`, bool [n], to whether\n"
"each was parsed.");

static PyObject *integers(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *from, *to, *marks, *result = NULL;
    Py_buffer data, cells, values, is_parsed;
    if (!PyArg_ParseTuple(args, "y*OOO:integers", &data, &from, &to, &marks)) {
        return NULL;
    }
    if (get_array(from, &cells, 0, 8, -1)) {
        Py_ssize_t num_lines = cells.len / 16;
        if (get_array(to, &values, 1, 8, num_lines)) {
            if (get_array(marks, &is_parsed, 1, 1, num_lines)) {
                const char *text = data.buf;
                for (Py_ssize_t place = 0; place < num_lines; place++) {
                    const int64_t *cell = (const int64_t *)cells.buf + 2 * place;
                    int64_t *value = (int64_t *)values.buf + place;
                    *value = 0;
                    ((char *)is_parsed.buf)[place] =
                        (char)(has_cell(&data, cell) && parse_integer(text + cell[0], text + cell[1], value));
                }
                result = Py_NewRef(Py_None);
                PyBuffer_Release(&is_parsed);
            }
            PyBuffer_Release(&values);
        }
        PyBuffer_Release(&cells);
    }
    PyBuffer_Release(&data);
    return result;
}

PyDoc_STRVAR(spans_doc,
"spans(data, cells, spans)\n--\n\n"
"Parse the spans OFFSET+LENGTH@PATH in `cells`, int64 [n, 2], of `data` into `spans`, int64 [n, 4]: offset, length, and\n"
"where the path starts and ends in `data`. Leaves the rows of cells that are not spans, or not plain ones, as they are.");

static PyObject *spans(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *from, *to, *result = NULL;
    Py_buffer data, cells, out;
    if (!PyArg_ParseTuple(args, "y*OO:spans", &data, &from, &to)) {
        return NULL;
    }
    if (get_array(from, &cells, 0, 8, -1)) {
        Py_ssize_t num_lines = cells.len / 16;
        if (get_array(to, &out, 1, 8, 4 * num_lines)) {
            const char *text = data.buf, *path;
            for (Py_ssize_t place = 0; place < num_lines; place++) {
                const int64_t *cell = (const int64_t *)cells.buf + 2 * place;
                int64_t *span = (int64_t *)out.buf + 4 * place;
                if (has_cell(&data, cell) && parse_span(text + cell[0], text + cell[1], &span[0], &span[1], &path)) {
                    span[2] = path - text;
                    span[3] = cell[1];
                }
            }
            result = Py_NewRef(Py_None);
            PyBuffer_Release(&out);
        }
        PyBuffer_Release(&cells);
    }
    PyBuffer_Release(&data);
    return result;
}

static PyMethodDef methods[] = {
    {"read", read_, METH_VARARGS, read_doc},
    {"ask", ask, METH_VARARGS, ask_doc},
    {"split", split, METH_VARARGS, split_doc},
    {"integers", integers, METH_VARARGS, integers_doc},
    {"spans", spans, METH_VARARGS, spans_doc},
    {NULL, NULL, 0, NULL},
};
static PyModuleDef_Slot slots[] = {{0, NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "mpload.index._lines",
    .m_doc = "Reads the lines of many samples at once, and cuts them into cells.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__lines(void) {
    return PyModuleDef_Init(&definition);
}

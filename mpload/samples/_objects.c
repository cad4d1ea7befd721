/* The Python module `mpload.samples._objects`. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <string.h>

#include "_scan.h"

/* The buffers of `scan_many`, in the order of its arguments. */
enum { AREA, STARTS, LENGTHS, IS_WANTED, GEOMETRIES, BOXES, NUMBERS, SHOWN, COLUMNS, BOUNDS, NUM_BUFFERS };

/* As Python's float(). */
static double number_of(const char *literal) {
    PyGILState_STATE state = PyGILState_Ensure();
    double number = PyOS_string_to_double(literal, NULL, NULL);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        number = HUGE_VAL;  /* which is declined */
    }
    PyGILState_Release(state);
    return number;
}

/* Take the names of a value: (is_int, name, ...). The tuple keeps the names alive. */
static int read_value(PyObject *tuple, Value *value) {
    Py_ssize_t size = PyTuple_Check(tuple) ? PyTuple_Size(tuple) : 0;
    if (size < 2 || size > MAX_NAMES + 1) {
        PyErr_Format(PyExc_ValueError, "a value must be a tuple of is_int and 1 to %d names", MAX_NAMES);
        return 0;
    }
    value->is_int = PyObject_IsTrue(PyTuple_GetItem(tuple, 0));
    value->count = (int)size - 1;
    for (int number = 0; number < value->count; number++) {
        value->names[number] = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(tuple, number + 1), NULL);
        if (value->names[number] == NULL) {
            return 0;
        }
    }
    return value->is_int >= 0;
}

static int read_values(PyObject *values, Wanted *wanted) {
    Py_ssize_t size = PyTuple_Size(values);
    if (size > MAX_VALUES) {
        PyErr_Format(PyExc_ValueError, "at most %d values are read", MAX_VALUES);
        return 0;
    }
    wanted->num_values = (int)size;
    for (int number = 0; number < wanted->num_values; number++) {
        if (!read_value(PyTuple_GetItem(values, number), &wanted->values[number])) {
            return 0;
        }
    }
    return 1;
}

/* Whether a buffer has room for so many items of `item_bytes`. */
static int has_room(const Py_buffer *buffer, int64_t count, int item_bytes) {
    return buffer->len / item_bytes >= count && (uintptr_t)buffer->buf % (size_t)item_bytes == 0;
}

/* Read one file. Return how many boxes are visible, which are written from number `first` on; -1 if it is declined. */
static int64_t scan_file(
    const Py_buffer *buffers, const Wanted *wanted, const Clip *clip, Py_ssize_t file, int64_t first
) {
    int64_t start = ((const int64_t *)buffers[STARTS].buf)[file], num_bytes = ((const int64_t *)buffers[LENGTHS].buf)[file];
    if (!((const uint8_t *)buffers[IS_WANTED].buf)[file] || start < 0 || num_bytes <= 0 || start > buffers[AREA].len
        || num_bytes > buffers[AREA].len - start) {
        return -1;
    }
    int64_t count = scan_objects(wanted, (const char *)buffers[AREA].buf + start, (size_t)num_bytes, first);
    const int64_t *geometry = (const int64_t *)buffers[GEOMETRIES].buf + file * NUM_GEOMETRY;
    return count > 0 ? clip_boxes(clip, wanted, geometry, first, count, buffers[SHOWN].buf) : count;
}

static void scan_all(const Py_buffer *buffers, const Wanted *wanted, const Clip *clip, Py_ssize_t num_files) {
    int64_t *bounds = buffers[BOUNDS].buf, done = 0;
    for (Py_ssize_t file = 0; file < num_files; file++) {
        int64_t count = scan_file(buffers, wanted, clip, file, done);
        bounds[2 * file] = count < 0 ? -1 : done;
        done += count < 0 ? 0 : count;
        bounds[2 * file + 1] = count < 0 ? -1 : done;
    }
}

PyDoc_STRVAR(scan_many_doc,
"scan_many(area, starts, lengths, is_wanted, geometries, values, format, min_visible, min_side, boxes, numbers, shown,\n"
"          columns, bounds)\n"
"--\n\n"
"Read many files of JSON in `area`, each a list of objects with a \"bbox\", and clip the boxes to what is shown.\n\n"
"starts, lengths: int64 [n]; files with a negative length are left out.\n"
"is_wanted: bool [n]; the other files are left out.\n"
"geometries: int64 [n, 13]; see mpload.images.many_geometries.\n"
"values: for each value that is read of an object, a tuple: whether it must be an integer, then its usual names.\n"
"format: 0 for xyxy, 1 for xywh, 2 for cxcywh, 3 for yolo; this and the next two are those of mpload.Boxes.\n"
"boxes, numbers: float64 [max_objects, 4] and [max_objects, len(values)], memory to work with.\n"
"shown: float32 [max_objects, 4]: what is visible of the boxes that are visible enough, of all files without gaps.\n"
"columns: 8 bytes [len(values), max_objects]: their values; each row holds int64, or float32 without gaps.\n"
"bounds: int64 [n, 2]: the first box of each file in `shown`, and the end of its boxes; -1, -1 if it was declined.");

static int are_fitting(const Py_buffer *buffers, const Wanted *wanted, Py_ssize_t num_files) {
    int64_t num_values = wanted->max_objects * wanted->num_values;
    return has_room(&buffers[STARTS], num_files, 8) && has_room(&buffers[LENGTHS], num_files, 8)
        && has_room(&buffers[IS_WANTED], num_files, 1) && has_room(&buffers[GEOMETRIES], num_files * NUM_GEOMETRY, 8)
        && has_room(&buffers[BOXES], 0, 8) && has_room(&buffers[NUMBERS], num_values, 8)
        && has_room(&buffers[SHOWN], wanted->max_objects * BOX_NUMBERS, 4)
        && has_room(&buffers[COLUMNS], num_values, COLUMN_BYTES) && has_room(&buffers[BOUNDS], 2 * num_files, 8);
}

static PyObject *scan_many(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer buffers[NUM_BUFFERS];
    Wanted wanted;
    Clip clip;
    int format;
    PyObject *values, *result = NULL;
    memset(&wanted, 0, sizeof wanted);
    if (!PyArg_ParseTuple(
            args, "y*y*y*y*y*O!iddw*w*w*w*w*:scan_many", &buffers[AREA], &buffers[STARTS], &buffers[LENGTHS],
            &buffers[IS_WANTED], &buffers[GEOMETRIES], &PyTuple_Type, &values, &format, &clip.min_visible, &clip.min_side,
            &buffers[BOXES], &buffers[NUMBERS], &buffers[SHOWN], &buffers[COLUMNS], &buffers[BOUNDS])) {
        return NULL;
    }
    Py_ssize_t num_files = buffers[BOUNDS].len / 16;
    clip.format = (Format)format;
    wanted.boxes = buffers[BOXES].buf;
    wanted.numbers = buffers[NUMBERS].buf;
    wanted.columns = buffers[COLUMNS].buf;
    wanted.max_objects = buffers[BOXES].len / (8 * BOX_NUMBERS);
    wanted.number = number_of;
    if (!read_values(values, &wanted)) {
        /* the error is set */
    } else if (format < 0 || format >= NUM_FORMATS || !are_fitting(buffers, &wanted, num_files)) {
        PyErr_SetString(PyExc_ValueError, "an array is too small or of another type, or the format is unknown");
    } else {
        Py_BEGIN_ALLOW_THREADS
        scan_all(buffers, &wanted, &clip, num_files);
        Py_END_ALLOW_THREADS
        result = Py_NewRef(Py_None);
    }
    for (int number = 0; number < NUM_BUFFERS; number++) {
        PyBuffer_Release(&buffers[number]);
    }
    return result;
}

static PyMethodDef methods[] = {
    {"scan_many", scan_many, METH_VARARGS, scan_many_doc},
    {NULL, NULL, 0, NULL},
};
static PyModuleDef_Slot slots[] = {{0, NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "mpload.samples._objects",
    .m_doc = "Lists of objects in JSON, read into arrays.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__objects(void) {
    return PyModuleDef_Init(&definition);
}

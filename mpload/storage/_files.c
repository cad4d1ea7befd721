/* Open a file below a folder and get its size, in one call instead of the three that Python needs; or read many ranges
   with one call.

   openat2 makes the kernel ensure that neither `..` nor a symbolic link leads outside the folder, even if a link is
   changed at the same time. open_file returns -1 in every unusual case: an error, a link to an absolute path, a folder,
   a device, or a kernel older than 5.6. The caller then falls back to slower Python code, which handles the case or
   raises an error that explains it. */

#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>

#include <fcntl.h>
#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>

#include "_read_many.h"

#ifdef __linux__
#include <sys/syscall.h>
#endif

#ifdef SYS_openat2
/* struct open_how from <linux/openat2.h>, which older systems lack. */
typedef struct {
    uint64_t flags, mode, resolve;
} How;

enum { NO_MAGIC_LINKS = 0x02, BENEATH = 0x08 };

int open_file(int folder, const char *path, int64_t *num_bytes) {
    /* Opening a FIFO must not block, and opening a terminal must not make it our controlling terminal. Neither is a
       regular file, so both are closed again below. */
    How how = {.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, .resolve = NO_MAGIC_LINKS | BENEATH};
    int file = (int)syscall(SYS_openat2, folder, path, &how, sizeof how);
    struct stat facts;
    if (file < 0) {
        return -1;
    }
    if (fstat(file, &facts) != 0 || !S_ISREG(facts.st_mode)) {
        close(file);
        return -1;
    }
    *num_bytes = facts.st_size;
    return file;
}
#else
int open_file(int folder, const char *path, int64_t *num_bytes) {
    (void)folder, (void)path, (void)num_bytes;
    return -1;
}
#endif

PyDoc_STRVAR(open_beneath_doc,
"open_beneath(folder, path)\n--\n\n"
"Open a regular file for reading and return its descriptor and its size in bytes.\n\n"
"`path` is relative to the folder with the descriptor `folder`. Returns None if the file cannot be opened this way,\n"
"for any reason.");

static PyObject *open_beneath(PyObject *module, PyObject *args) {
    (void)module;
    int folder, file;
    int64_t num_bytes = 0;
    PyObject *path;
    if (!PyArg_ParseTuple(args, "iO&:open_beneath", &folder, PyUnicode_FSConverter, &path)) {
        return NULL;
    }
    const char *bytes = PyBytes_AsString(path);
    Py_BEGIN_ALLOW_THREADS
    file = open_file(folder, bytes, &num_bytes);
    Py_END_ALLOW_THREADS
    Py_DECREF(path);
    if (file < 0) {
        Py_RETURN_NONE;
    }
    PyObject *result = Py_BuildValue("iL", file, (long long)num_bytes);
    if (result == NULL) {
        close(file);
    }
    return result;
}

enum { NUM_BUFFERS = 9 };  /* names, bounds, offsets, lengths, numbers; area, starts, sizes, at */
enum { MAX_SHARDS = 1 << 16 };

/* The open shards, and two buffers for each: its map, and which blocks of that are loaded. */
typedef struct {
    Shard *shards;
    Py_buffer *buffers;
    Py_ssize_t num_shards;
} Shards;

static void release_shards(Shards *shards) {
    for (Py_ssize_t i = 0; shards->buffers != NULL && i < 2 * shards->num_shards; i++) {
        if (shards->buffers[i].obj != NULL) {
            PyBuffer_Release(&shards->buffers[i]);
        }
    }
    PyMem_Free(shards->buffers);
    PyMem_Free(shards->shards);
}

/* Get a shard from a tuple: its descriptor, a map or None, when the file had last been changed before it was mapped, and
   which blocks are loaded. The map of a file that has changed is not used: access to bytes that are gone would kill this
   process by SIGBUS, and in an overlay file system the map holds the file as it was. */
static int get_shard(PyObject *from, Shard *shard, Py_buffer *buffers) {
    PyObject *map, *are_loaded;
    unsigned long long changed_ns;
    if (!PyArg_ParseTuple(from, "iOKO:shard", &shard->file, &map, &changed_ns, &are_loaded)) {
        return 0;
    }
    if (map == Py_None) {
        return 1;
    }
    if (PyObject_GetBuffer(map, &buffers[0], PyBUF_SIMPLE) != 0
        || PyObject_GetBuffer(are_loaded, &buffers[1], PyBUF_WRITABLE) != 0) {
        return 0;
    }
    if (buffers[1].len < buffers[0].len / BLOCK_BYTES + (buffers[0].len % BLOCK_BYTES > 0)) {
        PyErr_SetString(PyExc_ValueError, "each block of a map needs a byte");
        return 0;
    }
    Shard mapped = {
        .file = shard->file, .bytes = buffers[0].buf, .num_bytes = buffers[0].len, .changed_ns = changed_ns,
        .are_loaded = buffers[1].buf,
    };
    if (is_unchanged(&mapped)) {
        *shard = mapped;
    }
    return 1;
}

static int get_shards(PyObject *from, Shards *shards) {
    Py_ssize_t num_shards = PyTuple_Size(from);
    if (num_shards < 0 || num_shards > MAX_SHARDS) {
        PyErr_SetString(PyExc_ValueError, "too many shards");
        return 0;
    }
    shards->shards = PyMem_Calloc((size_t)num_shards + 1, sizeof(Shard));
    shards->buffers = PyMem_Calloc(2 * (size_t)num_shards + 1, sizeof(Py_buffer));
    shards->num_shards = num_shards;
    if (shards->shards == NULL || shards->buffers == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    for (Py_ssize_t i = 0; i < num_shards; i++) {
        if (!get_shard(PyTuple_GetItem(from, i), &shards->shards[i], &shards->buffers[2 * i])) {
            return 0;
        }
    }
    return 1;
}

static int has_items(const Py_buffer *buffer, int64_t num_items) {
    return buffer->len == num_items * (Py_ssize_t)sizeof(int64_t) && (uintptr_t)buffer->buf % sizeof(int64_t) == 0;
}

PyDoc_STRVAR(read_many_doc,
"read_many(names, bounds, offsets, lengths, numbers, shards, area, starts, sizes, at, folder, max_bytes, step_bytes,\n"
"          slow_ns, max_slow, first, num_before, num_samples)\n--\n\n"
"Read many ranges into `area`, and return how many are done, how many reads were slow, and the used part of `area`.\n\n"
"`mpload.storage.many` explains the arguments.");

static PyObject *read_ranges(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer all[NUM_BUFFERS] = {{0}};
    Shards shards = {0};
    ManyRanges ranges = {0};
    ManyRead result = {0};
    long long max_bytes, step_bytes, slow_ns, max_slow, first, num_before, num_samples;
    PyObject *at, *open_shards, *returned = NULL;
    if (!PyArg_ParseTuple(
            args, "y*y*y*y*y*O!w*w*w*OiLLLLLLL:read_many", &all[0], &all[1], &all[2], &all[3], &all[4], &PyTuple_Type,
            &open_shards, &all[5], &all[6], &all[7], &at, &ranges.folder, &max_bytes, &step_bytes, &slow_ns, &max_slow, &first,
            &num_before, &num_samples)) {
        return NULL;
    }
    if (!get_shards(open_shards, &shards) || (at != Py_None && PyObject_GetBuffer(at, &all[8], PyBUF_WRITABLE) != 0)) {
        goto release;
    }
    ranges.num_ranges = all[3].len / (Py_ssize_t)sizeof(int64_t);
    if (!has_items(&all[1], 2 * ranges.num_ranges) || !has_items(&all[2], ranges.num_ranges)
        || !has_items(&all[3], ranges.num_ranges) || !has_items(&all[4], ranges.num_ranges)
        || !has_items(&all[6], ranges.num_ranges) || !has_items(&all[7], ranges.num_ranges)
        || (at != Py_None && !has_items(&all[8], 1)) || step_bytes < 0 || num_before < 0 || num_samples < 1
        || (step_bytes > 0 && ranges.num_ranges > all[5].len / step_bytes)) {
        PyErr_SetString(PyExc_ValueError, "arrays must be int64 and of equal length, and steps must fit into the area");
        goto release;
    }
    ranges.names = all[0].buf;
    ranges.num_name_bytes = all[0].len;
    ranges.bounds = all[1].buf;
    ranges.offsets = all[2].buf;
    ranges.lengths = all[3].buf;
    ranges.numbers = all[4].buf;
    ranges.shards = shards.shards;
    ranges.num_shards = shards.num_shards;
    ranges.area = all[5].buf;
    ranges.area_bytes = all[5].len;
    result.starts = all[6].buf;
    result.sizes = all[7].buf;
    ranges.at = at == Py_None ? NULL : all[8].buf;
    ranges.max_bytes = max_bytes;
    ranges.step_bytes = step_bytes;
    ranges.slow_ns = slow_ns;
    ranges.max_slow = max_slow;
    ranges.first = first;
    ranges.num_before = num_before;
    ranges.num_samples = num_samples;
    Py_BEGIN_ALLOW_THREADS
    read_many(&ranges, &result);
    Py_END_ALLOW_THREADS
    returned = Py_BuildValue(
        "LLL", (long long)result.num_done, (long long)result.num_slow, (long long)result.used_bytes);
release:
    release_shards(&shards);
    for (int i = 0; i < NUM_BUFFERS; i++) {
        if (all[i].obj != NULL) {
            PyBuffer_Release(&all[i]);
        }
    }
    return returned;
}

PyDoc_STRVAR(distinct_doc,
"distinct(names, bounds, which, firsts)\n--\n\n"
"Number the distinct names in `which`, write the place of the first of each to `firsts`, and return how many there are.");

static PyObject *distinct(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer names, bounds, which, firsts;
    PyObject *returned = NULL;
    if (!PyArg_ParseTuple(args, "y*y*w*w*:distinct", &names, &bounds, &which, &firsts)) {
        return NULL;
    }
    int64_t n = which.len / (Py_ssize_t)sizeof(int64_t), most = firsts.len / (Py_ssize_t)sizeof(int64_t);
    if (!has_items(&bounds, 2 * n) || !has_items(&which, n) || !has_items(&firsts, most)) {
        PyErr_SetString(PyExc_ValueError, "arrays must be int64, and bounds twice as long as the numbers");
    } else {
        returned = PyLong_FromLongLong(
            distinct_names(names.buf, names.len, bounds.buf, n, most, which.buf, firsts.buf));
    }
    PyBuffer_Release(&names);
    PyBuffer_Release(&bounds);
    PyBuffer_Release(&which);
    PyBuffer_Release(&firsts);
    return returned;
}

static PyMethodDef methods[] = {
    {"open_beneath", open_beneath, METH_VARARGS, open_beneath_doc},
    {"read_many", read_ranges, METH_VARARGS, read_many_doc},
    {"distinct", distinct, METH_VARARGS, distinct_doc},
    {NULL, NULL, 0, NULL},
};
static PyModuleDef_Slot slots[] = {{0, NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "mpload.storage._files",
    .m_doc = "Opens and reads files below a folder.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__files(void) {
    return PyModuleDef_Init(&definition);
}

/* Open a file below a folder and get its size, in one call instead of the three that Python needs.

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

#ifdef __linux__
#include <sys/syscall.h>
#endif

#ifdef SYS_openat2
/* struct open_how from <linux/openat2.h>, which older systems lack. */
typedef struct {
    uint64_t flags, mode, resolve;
} How;

enum { NO_MAGIC_LINKS = 0x02, BENEATH = 0x08 };

static int open_file(int folder, const char *path, int64_t *num_bytes) {
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
static int open_file(int folder, const char *path, int64_t *num_bytes) {
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

static PyMethodDef methods[] = {{"open_beneath", open_beneath, METH_VARARGS, open_beneath_doc}, {NULL, NULL, 0, NULL}};
static PyModuleDef_Slot slots[] = {{0, NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "mpload.storage._files",
    .m_doc = "Opens files below a folder.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__files(void) {
    return PyModuleDef_Init(&definition);
}

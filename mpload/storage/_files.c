/* Open a file below a folder, and learn its size: one call where Python needs three.

   openat2 lets the kernel see to it that no `..` and no symbolic link, even one changed meanwhile, leads out of the
   folder. Whatever is unusual (an error, a link to an absolute path, a folder, a device, a kernel older than 5.6) is
   declined; the caller then takes its slower way, which knows what to do or what to say. */

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
/* As in <linux/openat2.h>, which older systems lack. */
typedef struct {
    uint64_t flags, mode, resolve;
} How;

enum { NO_MAGIC_LINKS = 0x02, BENEATH = 0x08 };

static int open_file(int folder, const char *path, int64_t *num_bytes) {
    /* A FIFO or terminal must neither wait nor be taken over before it is seen to be no regular file. */
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
"Open a regular file below the open folder for reading; return its descriptor and its size in bytes.\n\n"
"Returns None where that cannot be done, whatever the reason.");

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
    .m_doc = "Files below a folder.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__files(void) {
    return PyModuleDef_Init(&definition);
}

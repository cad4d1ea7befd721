/* The Feistel network of `mpload.plan.order`, for arrays of values. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

static inline uint64_t permuted(
    uint64_t value, uint64_t side, const uint64_t *keys, Py_ssize_t num_keys, uint64_t tweak) {
    uint64_t left = value / side, right = value - left * side;
    for (Py_ssize_t round = 0; round < num_keys; round++) {
        uint64_t hash = (right ^ keys[round] ^ tweak) * 0xBF58476D1CE4E5B9;
        hash = (hash ^ hash >> 32) * 0x94D049BB133111EB;
        uint64_t next = ((hash >> 32) * side >> 32) - left;  /* modulo side; a negative difference is huge */
        left = right;
        right = next < next + side ? next : next + side;
    }
    return right * side + left;
}

static int is_of(const Py_buffer *buffer, Py_ssize_t num_values) {
    return buffer->len == num_values * (Py_ssize_t)sizeof(uint64_t) && (uintptr_t)buffer->buf % sizeof(uint64_t) == 0;
}

PyDoc_STRVAR(permute_doc,
"permute(values, side, keys, tweaks, permuted)\n--\n\n"
"Permute `values`, uint64 [n], in [0, side**2), into `permuted`, uint64 [n]. There is a round for each of `keys`.\n"
"`tweaks`, uint64 [n], selects one of many permutations for each value; None selects number 0 for all.");

static PyObject *permute(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer values, keys, tweaks = {0}, to;
    unsigned long long side;
    PyObject *tweaks_or_none, *result = NULL;
    if (!PyArg_ParseTuple(args, "y*Ky*Ow*:permute", &values, &side, &keys, &tweaks_or_none, &to)) {
        return NULL;
    }
    Py_ssize_t n = to.len / (Py_ssize_t)sizeof(uint64_t), num_keys = keys.len / (Py_ssize_t)sizeof(uint64_t);
    int has_tweaks = tweaks_or_none != Py_None;
    if (!has_tweaks || PyObject_GetBuffer(tweaks_or_none, &tweaks, PyBUF_SIMPLE) == 0) {
        if (side == 0 || !is_of(&values, n) || !is_of(&to, n) || !is_of(&keys, num_keys)
            || (has_tweaks && !is_of(&tweaks, n))) {
            PyErr_SetString(PyExc_ValueError, "arrays must be uint64 and of equal length, and side must be positive");
        } else {
            const uint64_t *from = values.buf, *tweak = tweaks.buf;
            Py_BEGIN_ALLOW_THREADS
            for (Py_ssize_t i = 0; i < n; i++) {
                ((uint64_t *)to.buf)[i] = permuted(from[i], side, keys.buf, num_keys, has_tweaks ? tweak[i] : 0);
            }
            Py_END_ALLOW_THREADS
            result = Py_NewRef(Py_None);
        }
    }
    PyBuffer_Release(&values);
    PyBuffer_Release(&keys);
    PyBuffer_Release(&tweaks);
    PyBuffer_Release(&to);
    return result;
}

static PyMethodDef methods[] = {
    {"permute", permute, METH_VARARGS, permute_doc},
    {NULL, NULL, 0, NULL},
};
static PyModuleDef_Slot slots[] = {{0, NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "mpload.plan._permutation",
    .m_doc = "A Feistel network for arrays of values.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__permutation(void) {
    return PyModuleDef_Init(&definition);
}

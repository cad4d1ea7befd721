/* The loops of `mpload.plan.shares` and `mpload.plan.mixture` over single positions. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>

static inline int64_t floor_of(int64_t dividend, int64_t divisor) {
    int64_t quotient = dividend / divisor;
    return quotient - (dividend % divisor < 0);
}

static inline int64_t ceiling_of(int64_t dividend, int64_t divisor) {
    return -floor_of(-dividend, divisor);
}

typedef struct {
    const int64_t *parts, *rests;  /* by source */
    int64_t *turns, *nums_left;    /* by source */
    int64_t total, num_positions;
    int32_t *released, *due;  /* by position: the first source whose next turn may come there at the earliest, or must come
                                 there at the latest; -1 for none */
    int32_t *next;            /* by source: the next one in the same list */
    int64_t earliest_due;
} Block;

static void add(Block *block, int32_t *list, Py_ssize_t source) {
    block->next[source] = *list;
    *list = (int32_t)source;
}

/* Add the next turn of a source to a list, unless it has no more in this block. */
static void queue_turn(Block *block, Py_ssize_t source, int64_t position) {
    if (block->nums_left[source] == 0) {
        return;
    }
    int64_t part = block->parts[source];
    int64_t start = block->turns[source] * block->total - block->rests[source];
    int64_t release = floor_of(start, part);
    if (release > position) {
        if (release < block->num_positions) {
            add(block, &block->released[release], source);
        }
        return;
    }
    int64_t due = ceiling_of(start + block->total, part) - 1;
    due = due < position ? position : due < block->num_positions ? due : block->num_positions - 1;
    add(block, &block->due[due], source);
    block->earliest_due = due < block->earliest_due ? due : block->earliest_due;
}

static int assign(Block *block, Py_ssize_t num_sources, int64_t num_made, uint16_t *sources) {
    for (Py_ssize_t source = 0; source < num_sources; source++) {
        queue_turn(block, source, 0);
    }
    for (int64_t position = 0; position < num_made; position++) {
        int32_t source = block->released[position];
        while (source >= 0) {
            int32_t next = block->next[source];
            queue_turn(block, source, position);
            source = next;
        }
        while (block->earliest_due < block->num_positions && block->due[block->earliest_due] < 0) {
            block->earliest_due++;
        }
        if (block->earliest_due >= block->num_positions) {
            return -1;
        }
        source = block->due[block->earliest_due];
        block->due[block->earliest_due] = block->next[source];
        sources[position] = (uint16_t)source;
        block->turns[source]++;
        block->nums_left[source]--;
        queue_turn(block, source, position);
    }
    return 0;
}

static int has_items(const Py_buffer *buffer, Py_ssize_t num_items, Py_ssize_t item_bytes) {
    return buffer->len == num_items * item_bytes && (uintptr_t)buffer->buf % item_bytes == 0;
}

PyDoc_STRVAR(assign_doc,
"assign(parts, rests, turns, nums_left, total, num_positions, sources)\n--\n\n"
"Assign the first positions of a block of `num_positions` to sources, the earliest deadline first, into `sources`,\n"
"uint16 [n]. n is at most `num_positions`.\n"
"`parts`, `rests`, `turns` and `nums_left` are int64 [num_sources]; the last two are changed.");

static PyObject *assign_positions(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer parts, rests, turns, nums_left, to;
    long long total, num_positions;
    if (!PyArg_ParseTuple(
            args, "y*y*w*w*LLw*:assign", &parts, &rests, &turns, &nums_left, &total, &num_positions, &to)) {
        return NULL;
    }
    PyObject *result = NULL;
    Py_ssize_t num_sources = parts.len / 8, num_made = to.len / 2;
    if (num_made > num_positions || num_positions > INT32_MAX || num_sources > 65536 || !has_items(&parts, num_sources, 8) || !has_items(&rests, num_sources, 8)
        || !has_items(&turns, num_sources, 8) || !has_items(&nums_left, num_sources, 8)
        || !has_items(&to, num_made, 2)) {
        PyErr_SetString(PyExc_ValueError, "there must be int64 arrays of equal length, and an array of uint16");
    } else {
        Block block = {.parts = parts.buf, .rests = rests.buf, .turns = turns.buf, .nums_left = nums_left.buf,
                       .total = total, .num_positions = num_positions, .earliest_due = num_positions};
        block.released = malloc(sizeof(int32_t) * (num_positions + 1));
        block.due = malloc(sizeof(int32_t) * (num_positions + 1));
        block.next = malloc(sizeof(int32_t) * (num_sources + 1));
        if (block.released == NULL || block.due == NULL || block.next == NULL) {
            PyErr_NoMemory();
        } else {
            int failed;
            Py_BEGIN_ALLOW_THREADS
            for (Py_ssize_t i = 0; i <= num_positions; i++) {
                block.released[i] = block.due[i] = -1;
            }
            failed = assign(&block, num_sources, num_made, to.buf);
            Py_END_ALLOW_THREADS
            if (failed) {
                PyErr_SetString(PyExc_ValueError, "there are fewer turns than positions");
            } else {
                result = Py_NewRef(Py_None);
            }
        }
        free(block.released);
        free(block.due);
        free(block.next);
    }
    PyBuffer_Release(&parts);
    PyBuffer_Release(&rests);
    PyBuffer_Release(&turns);
    PyBuffer_Release(&nums_left);
    PyBuffer_Release(&to);
    return result;
}

static inline uint64_t permuted(uint64_t value, uint64_t num_values, uint64_t side, const uint64_t *keys, int num_keys) {
    if (num_values > 1 && (keys[0] & 1) && value < 2) {
        value ^= 1;
    }
    do {
        uint64_t left = value / side, right = value - left * side;
        for (int round = 0; round < num_keys; round++) {
            uint64_t hash = (right ^ keys[round]) * 0xBF58476D1CE4E5B9;
            hash = (hash ^ hash >> 32) * 0x94D049BB133111EB;
            uint64_t next = ((hash >> 32) * side >> 32) - left;
            left = right;
            right = next < next + side ? next : next + side;
        }
        value = right * side + left;
    } while (value >= num_values);
    return value;
}

PyDoc_STRVAR(permute_each_doc,
"permute_each(values, rows, nums_values, sides, keys, permuted)\n--\n\n"
"Permute `values`, uint64 [n], into `permuted`, uint64 [n], each with the permutation that `rows`, uint64 [n], selects.\n"
"`nums_values` and `sides` are uint64 [num_rows], and `keys` is uint64 [num_rows, num_keys].");

static PyObject *permute_each(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer values, rows, nums, sides, keys, to;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*w*:permute_each", &values, &rows, &nums, &sides, &keys, &to)) {
        return NULL;
    }
    PyObject *result = NULL;
    Py_ssize_t n = to.len / 8, num_rows = nums.len / 8, num_keys = num_rows ? keys.len / 8 / num_rows : 0;
    int fits = has_items(&values, n, 8) && has_items(&rows, n, 8) && has_items(&to, n, 8) && num_keys > 0
        && has_items(&nums, num_rows, 8) && has_items(&sides, num_rows, 8) && has_items(&keys, num_rows * num_keys, 8);
    const uint64_t *value = values.buf, *row = rows.buf, *num = nums.buf, *side = sides.buf, *key = keys.buf;
    for (Py_ssize_t i = 0; fits && i < n; i++) {  /* outside of the range, cycle walking might not end */
        fits = row[i] < (uint64_t)num_rows && value[i] < num[row[i]];
    }
    for (Py_ssize_t i = 0; fits && i < num_rows; i++) {
        fits = side[i] > 0 && side[i] < (1ULL << 32) && side[i] * side[i] >= num[i];
    }
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "arrays must be uint64 of equal length, and values must be in range");
    } else {
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t i = 0; i < n; i++) {
            uint64_t r = row[i];
            ((uint64_t *)to.buf)[i] = permuted(value[i], num[r], side[r], key + r * num_keys, (int)num_keys);
        }
        Py_END_ALLOW_THREADS
        result = Py_NewRef(Py_None);
    }
    PyBuffer_Release(&values);
    PyBuffer_Release(&rows);
    PyBuffer_Release(&nums);
    PyBuffer_Release(&sides);
    PyBuffer_Release(&keys);
    PyBuffer_Release(&to);
    return result;
}

static PyMethodDef methods[] = {
    {"assign", assign_positions, METH_VARARGS, assign_doc},
    {"permute_each", permute_each, METH_VARARGS, permute_each_doc},
    {NULL, NULL, 0, NULL},
};
static PyModuleDef_Slot slots[] = {{0, NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "mpload.plan._mixture",
    .m_doc = "The loops of mixtures over single positions.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__mixture(void) {
    return PyModuleDef_Init(&definition);
}

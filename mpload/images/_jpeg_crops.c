/* `decode_crops` and `decode_crops_of_many` of the Python module. */

#include <string.h>

#include "_jpeg_module.h"

/* What is read of the arguments `crops` and `outs`. */
typedef struct {
    Py_buffer buffers[MAX_GROUPS];
    Group groups[MAX_GROUPS];
    size_t count;
    size_t num_random;      /* crops */
} Groups;

static void release(Groups *groups) {
    while (groups->count > 0) {
        PyBuffer_Release(&groups->buffers[--groups->count]);
    }
}

/* Read what one array of crops shows; its last four dimensions are those of a photo's crops. Returns 0, with an error, if
   something is not as it should be. */
static int read_group(PyObject *crop, const Py_buffer *out, int num_dims, Group *group) {
    const Py_ssize_t *shape = out->shape + num_dims - 4;
    PyObject *numbers;
    memset(group, 0, sizeof *group);
    if (out->ndim != num_dims || out->itemsize != 1 || shape[3] != 3 || shape[0] < 1 || shape[0] > MAX_CROPS
        || shape[1] < 1 || shape[1] > MAX_SIDE || shape[2] < 1 || shape[2] > MAX_SIDE) {
        PyErr_Format(PyExc_ValueError, "outs must be uint8 [..., up to %d, height, width, 3]", MAX_CROPS);
        return 0;
    }
    if (!PyTuple_Check(crop)) {
        PyErr_SetString(PyExc_TypeError, "crops must be tuples");
        return 0;
    }
    group->count = (int)shape[0];
    group->crop.size[0] = (int)shape[1];
    group->crop.size[1] = (int)shape[2];
    group->out = out->buf;
    return PyArg_ParseTuple(crop, "O!p:crop", &PyTuple_Type, &numbers, &group->crop.antialias)
        && read_crop(numbers, &group->crop, &group->random);
}

/* Returns 0, with an error, if something is not as it should be. */
static int read_groups(PyObject *crops, PyObject *outs, int num_dims, Groups *groups) {
    Py_ssize_t count = PyTuple_Size(crops);
    groups->count = groups->num_random = 0;
    if (count > MAX_GROUPS || PyTuple_Size(outs) != count) {
        PyErr_Format(PyExc_ValueError, "at most %d crops are wanted, and an array for each", MAX_GROUPS);
        return 0;
    }
    while (groups->count < (size_t)count) {
        Py_ssize_t number = (Py_ssize_t)groups->count;
        Py_buffer *out = &groups->buffers[number];
        if (PyObject_GetBuffer(PyTuple_GetItem(outs, number), out, PyBUF_WRITABLE | PyBUF_ND) != 0) {
            release(groups);
            return 0;
        }
        Group *group = &groups->groups[groups->count++];
        if (!read_group(PyTuple_GetItem(crops, number), out, num_dims, group)) {
            release(groups);
            return 0;
        }
        groups->num_random += group->crop.random == NULL ? 0 : (size_t)group->count;
    }
    return 1;
}

const char crops_of_photo_doc[] =
"decode_crops(data, crops, draws, upright, limits, outs)\n--\n\n"
"Write several crops of one JPEG in one pass; see mpload.images.crops_of_photo.\n\n"
"crops: for each array of `outs`, (crop, antialias), with a crop as `decode_many` takes it.\n"
"draws: float64 [23 * number of random crops], numbers of the sample's generator.\n"
"limits: as for `decode_many`.\n"
"outs: arrays uint8 [number of crops, height, width, 3], C-contiguous.\n\n"
"Returns whether they were made. If not, the contents of `outs` are undefined.";

static PyObject *write_crops(
    PyObject *module, const Photos *limits, const Py_buffer *data, const Groups *groups, const Py_buffer *draws
) {
    size_t num_draws = groups->num_random * NUM_DRAWS;
    if (draws->len != (Py_ssize_t)(num_draws * sizeof(double)) || (uintptr_t)draws->buf % sizeof(double) != 0) {
        PyErr_Format(PyExc_ValueError, "draws must be float64 [%zu]", num_draws);
        return NULL;
    }
    State *state = PyModule_GetState(module);
    Decoder *decoder = take_decoder(state);
    if (decoder == NULL) {
        return PyErr_NoMemory();
    }
    int is_made;
    Py_BEGIN_ALLOW_THREADS
    is_made = decode_crops(
        decoder, limits, data->buf, (int64_t)data->len, groups->groups, groups->count, draws->buf);
    Py_END_ALLOW_THREADS
    put_back(state, decoder);
    return PyBool_FromLong(is_made);
}

PyObject *crops_of_photo(PyObject *module, PyObject *args) {
    Py_buffer data, draws;
    Groups groups;
    Photos limits;
    PyObject *crops, *outs, *result = NULL;
    long long bounds[4];
    memset(&limits, 0, sizeof limits);
    if (!PyArg_ParseTuple(
            args, "y*O!y*p(LLLL)O!:decode_crops", &data, &PyTuple_Type, &crops, &draws, &limits.is_upright, &bounds[0],
            &bounds[1], &bounds[2], &bounds[3], &PyTuple_Type, &outs)) {
        return NULL;  /* it has released the buffers */
    }
    limits.max_bytes = bounds[0];
    limits.max_pixels = bounds[1];
    limits.max_pixels_per_byte = bounds[2];
    limits.max_scans = bounds[3];
    if (read_groups(crops, outs, 4, &groups)) {
        result = write_crops(module, &limits, &data, &groups, &draws);
        release(&groups);
    }
    PyBuffer_Release(&draws);
    PyBuffer_Release(&data);
    return result;
}

const char crops_of_photos_doc[] =
"decode_crops_of_many(area, starts, lengths, sample_ids, key, crops, upright, limits, outs, is_made, next, first)\n"
"--\n\n"
"Write the same crops of each of many JPEGs in `area`, as `decode_crops` does for one.\n\n"
"outs: arrays uint8 [n, number of crops, height, width, 3], C-contiguous.\n"
"is_made: uint8 [n], set to 1 for photos whose crops were made, and to 0 for all others.\n"
"All other arguments are as for `decode_many`.";

/* The buffers of `decode_crops_of_many`, in the order of its arguments. */
enum { AREA, STARTS, LENGTHS, SAMPLE_IDS, IS_MADE, NEXT, NUM_BUFFERS };

static int read_photos(const Py_buffer *buffers, const Groups *groups, Photos *photos) {
    Py_ssize_t count = buffers[IS_MADE].len;
    for (size_t number = 0; number < groups->count; number++) {
        if (groups->buffers[number].shape[0] != count) {
            PyErr_SetString(PyExc_ValueError, "outs must be uint8 [n, ...], and is_made uint8 [n]");
            return 0;
        }
    }
    photos->count = (size_t)count;
    photos->area = buffers[AREA].buf;
    photos->area_bytes = (size_t)buffers[AREA].len;
    photos->is_made = buffers[IS_MADE].buf;
    return (photos->starts = as_int64(&buffers[STARTS], count)) != NULL
        && (photos->lengths = as_int64(&buffers[LENGTHS], count)) != NULL
        && (photos->sample_ids = as_int64(&buffers[SAMPLE_IDS], count)) != NULL
        && (buffers[NEXT].obj == NULL || (photos->next = as_int64(&buffers[NEXT], 1)) != NULL);
}

/* Declines all photos if memory runs out. */
static void run_photos(PyObject *module, const Photos *photos, const Groups *groups) {
    State *state = PyModule_GetState(module);
    Decoder *decoder = take_decoder(state);
    int done = 0;
    if (decoder != NULL) {
        Py_BEGIN_ALLOW_THREADS
        done = decode_crops_of_photos(decoder, photos, groups->groups, groups->count);
        Py_END_ALLOW_THREADS
        put_back(state, decoder);
    }
    if (!done) {
        memset(photos->is_made, 0, photos->count);
    }
}

PyObject *crops_of_photos(PyObject *module, PyObject *args) {
    Py_buffer buffers[NUM_BUFFERS];
    Groups groups;
    Photos photos;
    PyObject *crops, *outs, *next;
    unsigned long long key[2];
    long long limits[4], first;
    memset(buffers, 0, sizeof buffers);
    memset(&photos, 0, sizeof photos);
    if (!PyArg_ParseTuple(
            args, "y*y*y*y*(KK)O!p(LLLL)O!w*OL:decode_crops_of_many", &buffers[AREA], &buffers[STARTS],
            &buffers[LENGTHS], &buffers[SAMPLE_IDS], &key[0], &key[1], &PyTuple_Type, &crops, &photos.is_upright,
            &limits[0], &limits[1], &limits[2], &limits[3], &PyTuple_Type, &outs, &buffers[IS_MADE], &next, &first)) {
        return NULL;  /* it has released the buffers */
    }
    photos.key[0] = key[0];
    photos.key[1] = key[1];
    photos.max_bytes = limits[0];
    photos.max_pixels = limits[1];
    photos.max_pixels_per_byte = limits[2];
    photos.max_scans = limits[3];
    photos.first = first;
    int done = 0;
    if ((next == Py_None || PyObject_GetBuffer(next, &buffers[NEXT], PyBUF_WRITABLE) == 0)
        && read_groups(crops, outs, 5, &groups)) {
        done = read_photos(buffers, &groups, &photos);
        if (done) {
            run_photos(module, &photos, &groups);
        }
        release(&groups);
    }
    for (int number = 0; number < NUM_BUFFERS; number++) {
        PyBuffer_Release(&buffers[number]);  /* does nothing for one that was not taken */
    }
    return done ? Py_NewRef(Py_None) : NULL;
}

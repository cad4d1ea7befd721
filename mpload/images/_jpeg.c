/* Decode part of a JPEG, resize it and mirror it, straight into the caller's pixels.

   Only the rows and columns that the result needs are decoded; libjpeg-turbo stops after the last of them. Each row of
   the source is resized horizontally once, into one of a few buffers, and these are mixed into rows of the result.

   What is unusual is declined: CMYK, more or fewer than 8 bits, damage, anything that libjpeg warns of. The caller then
   takes its slower way, which knows what to do or what to say. Upsampling is always the smooth ("fancy") kind: with
   the plain kind libjpeg-turbo 2.1 shows wrong pixels, or crashes, where rows or columns are left out.

   Define MPLOAD_JPEG_WITHOUT_PYTHON to include this file in a C program. */

#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>
#include <jerror.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#ifndef LIBJPEG_TURBO_VERSION
#error "libjpeg-turbo is needed: other libjpegs cannot leave out rows and columns"
#endif

enum {
    MAX_TAPS = 64,      /* of one output pixel along one axis; more is declined */
    BLOCK_ROWS = 8,     /* rows asked of libjpeg at a time */
    MARGIN = 2,         /* columns that smooth upsampling looks at beyond a pixel */
    PADDING_BYTES = 256, /* that may be read, or written, after a row's end: more than MAX_TAPS pixels */
    MAX_SIDE = 65535
};

/* `StoredView` in Python, which has no size of the result: that of its array is taken. */
typedef struct {
    int stored_height, stored_width;      /* of the whole image: another size is declined */
    int denominator;                      /* the image is decoded at 1/denominator of its size: 1, 2, 4 or 8 */
    int top, left, height, width;         /* the box, in pixels of the image at that scale */
    int full_height, full_width;          /* what the box is resized to */
    int out_top, out_left;                /* where in that the result begins */
    int out_height, out_width;            /* of the result */
    int mirror, antialias;                /* left to right; a filter as wide as what a result's pixel covers */
} View;

/* For each pixel of the result along one axis: which pixels of the box it is mixed from, and how much of each. */
typedef struct {
    int taps;           /* the most that a pixel has */
    int first, end;     /* the pixels of the box that are needed at all */
    int *starts;        /* [count] the first one of each */
    int *ends;          /* [count] after the last one of each */
    uint16_t *weights;  /* [count][taps], of 65536; zeros follow the last */
    size_t starts_bytes, ends_bytes, weights_bytes;
} Axis;

typedef struct Decoder {
    struct jpeg_decompress_struct info;
    struct jpeg_error_mgr errors;
    jmp_buf on_error;
    char cause[JMSG_LENGTH_MAX];
    Axis rows, columns;
    uint8_t *block;         /* BLOCK_ROWS rows as libjpeg writes them */
    uint16_t *ring;         /* rows.taps rows, resized horizontally; 8 bits before the point and 8 after it */
    uint16_t *lanes;        /* [out_width][pairs][8]: the weights of columns as `resize_row` wants them */
    uint32_t *offsets;      /* [out_width]: the byte of a row of the block where a column's first pixel begins */
    size_t block_bytes, ring_bytes, lanes_bytes, offsets_bytes;
    struct Decoder *next;   /* in the list of those at rest */
} Decoder;

static void fail(j_common_ptr common) {
    Decoder *decoder = (Decoder *)common->client_data;
    common->err->format_message(common, decoder->cause);
    longjmp(decoder->on_error, 1);
}

static void on_message(j_common_ptr common, int level) {
    if (level < 0) {  /* a warning: the slower way judges whether it harms the pixels */
        fail(common);  /* and nothing is ever printed */
    }
}

static void decline(Decoder *decoder, const char *cause) {
    snprintf(decoder->cause, sizeof decoder->cause, "%s", cause);
    longjmp(decoder->on_error, 1);
}

/* Buffers grow and are kept: after the largest image nothing is allocated here. */
static void *grow(Decoder *decoder, void *buffer, size_t *held_bytes, size_t bytes) {
    if (bytes <= *held_bytes) {
        return buffer;
    }
    void *larger = realloc(buffer, bytes);
    if (larger == NULL) {
        decline(decoder, "out of memory");
    }
    memset((uint8_t *)larger + *held_bytes, 0, bytes - *held_bytes);
    *held_bytes = bytes;
    return larger;
}

#define GROW(decoder, buffer, bytes) ((buffer) = grow((decoder), (buffer), &buffer##_bytes, (bytes)))

static int set_up(Decoder *decoder) {
    decoder->info.err = jpeg_std_error(&decoder->errors);
    decoder->errors.error_exit = fail;
    decoder->errors.emit_message = on_message;
    decoder->info.client_data = decoder;
    if (setjmp(decoder->on_error)) {
        jpeg_destroy_decompress(&decoder->info);
        return 0;
    }
    jpeg_create_decompress(&decoder->info);
    return 1;
}

static Decoder *new_decoder(void) {
    Decoder *decoder = calloc(1, sizeof *decoder);
    if (decoder != NULL && !set_up(decoder)) {
        free(decoder);
        decoder = NULL;
    }
    return decoder;
}

static void free_decoder(Decoder *decoder) {
    jpeg_destroy_decompress(&decoder->info);
    void *buffers[] = {decoder->rows.starts, decoder->rows.ends, decoder->rows.weights, decoder->columns.starts,
                       decoder->columns.ends, decoder->columns.weights, decoder->block, decoder->ring, decoder->lanes,
                       decoder->offsets};
    for (size_t number = 0; number < sizeof buffers / sizeof *buffers; number++) {
        free(buffers[number]);
    }
    free(decoder);
}

/* Pixel centres lie at halves; a triangle of half-width `support` is laid over them and cut off at the box's edges. */
static void fill_axis(Decoder *decoder, Axis *axis, int length, int full, int out_first, int count, int antialias) {
    double scale = (double)length / full;
    double support = antialias && scale > 1 ? scale : 1;
    if (support > (MAX_TAPS - 1) / 2) {
        decline(decoder, "it is shrunk too much");
    }
    int taps = support > 1 ? 2 * (int)ceil(support) + 1 : 2;
    GROW(decoder, axis->starts, (size_t)count * sizeof(int));
    GROW(decoder, axis->ends, (size_t)count * sizeof(int));
    GROW(decoder, axis->weights, (size_t)count * (size_t)taps * sizeof(uint16_t));
    axis->taps = taps;
    for (int out = 0; out < count; out++) {
        double centre = (out_first + out + 0.5) * scale;
        int start = (int)floor(centre - support + 0.5), end = (int)floor(centre + support + 0.5);
        start = start < 0 ? 0 : start;
        end = end > length ? length : end;
        end = end > start + taps ? start + taps : end;  /* rounding: what is cut off weighs next to nothing */
        double sum = 0, exact[MAX_TAPS];
        for (int at = start; at < end; at++) {
            double weight = 1 - fabs(at + 0.5 - centre) / support;
            exact[at - start] = weight > 0 ? weight : 0;
            sum += exact[at - start];
        }
        uint16_t *weights = axis->weights + (size_t)out * (size_t)taps;
        int left_over = 65536, largest = 0;
        memset(weights, 0, (size_t)taps * sizeof *weights);
        for (int tap = 0; tap < end - start; tap++) {
            int weight = (int)(exact[tap] / sum * 65536);
            weights[tap] = (uint16_t)(weight > 65535 ? 65535 : weight);
            left_over -= weights[tap];
            largest = exact[tap] > exact[largest] ? tap : largest;
        }
        left_over += weights[largest];  /* so that all together make 1, or as near to it as 16 bits hold */
        weights[largest] = (uint16_t)(left_over > 65535 ? 65535 : left_over);
        axis->starts[out] = start;
        axis->ends[out] = end;
    }
    axis->first = axis->starts[0];
    axis->end = axis->ends[count - 1];
}

/* Two pixels of a row are taken at a time, six bytes of a load of eight. A row begins with column `origin` of the box. */
static void fill_lanes(Decoder *decoder, int count, int mirror, int origin) {
    const Axis *columns = &decoder->columns;
    int pairs = (columns->taps + 1) / 2;
    GROW(decoder, decoder->lanes, (size_t)count * (size_t)pairs * 8 * sizeof(uint16_t));
    GROW(decoder, decoder->offsets, (size_t)count * sizeof(uint32_t));
    uint16_t *lanes = decoder->lanes;
    for (int out = 0; out < count; out++) {
        int column = mirror ? count - 1 - out : out;
        const uint16_t *weights = columns->weights + (size_t)column * (size_t)columns->taps;
        decoder->offsets[out] = 3 * (uint32_t)(columns->starts[column] - origin);
        for (int pair = 0; pair < pairs; pair++, lanes += 8) {
            uint16_t second = 2 * pair + 1 < columns->taps ? weights[2 * pair + 1] : 0;
            for (int lane = 0; lane < 8; lane++) {
                lanes[lane] = lane < 3 ? weights[2 * pair] : lane < 6 ? second : 0;
            }
        }
    }
}

/* Mix the pixels of `source` to `count` pixels of 3 x 16 bits. */
static inline void resize_row_by(
    const uint8_t *source, const uint32_t *offsets, const uint16_t *lanes, int pairs, int count, uint16_t *result
) {
    for (int out = 0; out < count; out++) {
        const uint8_t *pixels = source + offsets[out];
#ifdef __SSE2__
        __m128i sum = _mm_setzero_si128();
        for (int pair = 0; pair < pairs; pair++, pixels += 6, lanes += 8) {
            __m128i wide = _mm_unpacklo_epi8(_mm_setzero_si128(), _mm_loadl_epi64((const __m128i *)pixels));
            sum = _mm_add_epi16(sum, _mm_mulhi_epu16(wide, _mm_loadu_si128((const __m128i *)lanes)));
        }
        sum = _mm_add_epi16(sum, _mm_srli_si128(sum, 6));
        _mm_storel_epi64((__m128i *)(result + 3 * (size_t)out), sum);  /* the fourth is overwritten by the next */
#else
        uint32_t sums[3] = {0, 0, 0};
        for (int pair = 0; pair < pairs; pair++, pixels += 6, lanes += 8) {
            for (int colour = 0; colour < 3; colour++) {
                sums[colour] += (uint32_t)pixels[colour] * lanes[0] + (uint32_t)pixels[colour + 3] * lanes[3];
            }
        }
        for (int colour = 0; colour < 3; colour++) {
            result[3 * (size_t)out + colour] = (uint16_t)(sums[colour] >> 8);
        }
#endif
    }
}

static void resize_row(const Decoder *decoder, const uint8_t *source, int count, uint16_t *result) {
    if (decoder->columns.taps == 2) {  /* known to the compiler: no inner loop */
        resize_row_by(source, decoder->offsets, decoder->lanes, 1, count, result);
    } else {
        resize_row_by(source, decoder->offsets, decoder->lanes, (decoder->columns.taps + 1) / 2, count, result);
    }
}

#define PART(value, weight) ((uint16_t)(((uint32_t)(value) * (uint32_t)(weight)) >> 16))

static void mix_two(const uint16_t *a, const uint16_t *b, const uint16_t *weights, size_t count, uint8_t *restrict out) {
    uint16_t of_a = weights[0], of_b = weights[1];
    for (size_t at = 0; at < count; at++) {
        out[at] = (uint8_t)((uint16_t)(PART(a[at], of_a) + PART(b[at], of_b) + 128) >> 8);
    }
}

static void mix_rows(Decoder *decoder, int out, size_t stride, size_t count, uint8_t *restrict result) {
    const Axis *rows = &decoder->rows;
    const uint16_t *weights = rows->weights + (size_t)out * (size_t)rows->taps;
    int start = rows->starts[out], num = rows->ends[out] - start;
    const uint16_t *ring = decoder->ring;
    if (num <= 2) {
        const uint16_t *first = ring + stride * (size_t)(start % rows->taps);
        mix_two(first, num == 2 ? ring + stride * (size_t)((start + 1) % rows->taps) : first, weights, count, result);
        return;
    }
    uint16_t *restrict sums = decoder->ring + stride * (size_t)rows->taps;  /* the row after the ring */
    memset(sums, 0, count * sizeof *sums);
    for (int tap = 0; tap < num; tap++) {
        const uint16_t *row = ring + stride * (size_t)((start + tap) % rows->taps);
        uint16_t weight = weights[tap];
        for (size_t at = 0; at < count; at++) {
            sums[at] = (uint16_t)(sums[at] + PART(row[at], weight));
        }
    }
    for (size_t at = 0; at < count; at++) {
        result[at] = (uint8_t)((uint16_t)(sums[at] + 128) >> 8);
    }
}

/* A file that breaks off below the last row that was read is truncated all the same. */
static int has_end(struct jpeg_decompress_struct *info) {
    if (info->unread_marker == 0xD9 || jpeg_input_complete(info)) {
        return 1;
    }
    const uint8_t *rest = info->src->next_input_byte;
    for (size_t at = info->src->bytes_in_buffer; at >= 2; at--) {
        if (rest[at - 2] == 0xFF && rest[at - 1] == 0xD9) {
            return 1;
        }
    }
    return 0;
}

static void check_header(Decoder *decoder, const View *view) {
    const struct jpeg_decompress_struct *info = &decoder->info;
    if ((int)info->image_height != view->stored_height || (int)info->image_width != view->stored_width) {
        decline(decoder, "its size is not the expected one");
    }
    if (info->data_precision != 8) {
        decline(decoder, "it has not 8 bits a sample");
    }
    J_COLOR_SPACE space = info->jpeg_color_space;
    if (space != JCS_YCbCr && space != JCS_GRAYSCALE && space != JCS_RGB) {
        decline(decoder, "its colours are not RGB, YCbCr or gray");
    }
}

/* Many rows are read before the first is looked at: a processor waits where it loads what it has only just stored. */
static int read_block(Decoder *decoder, JSAMPROW *pointers, int wanted) {
    wanted = wanted < BLOCK_ROWS ? wanted : BLOCK_ROWS;
    for (int got = 0; got < wanted;) {
        int more = (int)jpeg_read_scanlines(&decoder->info, pointers + got, (JDIMENSION)(wanted - got));
        if (more == 0) {
            decline(decoder, "its rows end early");
        }
        got += more;
    }
    return wanted;
}

static void decode_rows(Decoder *decoder, const View *view, uint8_t *out) {
    struct jpeg_decompress_struct *info = &decoder->info;
    JDIMENSION first_column = (JDIMENSION)(view->left + decoder->columns.first);
    JDIMENSION end_column = (JDIMENSION)(view->left + decoder->columns.end) + MARGIN;
    first_column = first_column < MARGIN ? 0 : first_column - MARGIN;
    JDIMENSION num_columns = (end_column > info->output_width ? info->output_width : end_column) - first_column;
    if (num_columns < info->output_width) {
        jpeg_crop_scanline(info, &first_column, &num_columns);  /* which begins where a block does */
    }

    size_t row_bytes = (size_t)info->output_width * 3 + PADDING_BYTES;
    size_t stride = (size_t)view->out_width * 3 + PADDING_BYTES;
    GROW(decoder, decoder->block, row_bytes * BLOCK_ROWS);
    GROW(decoder, decoder->ring, stride * (size_t)(decoder->rows.taps + 1) * sizeof(uint16_t));
    JSAMPROW pointers[BLOCK_ROWS];
    for (int row = 0; row < BLOCK_ROWS; row++) {
        pointers[row] = decoder->block + row_bytes * (size_t)row;
    }

    fill_lanes(decoder, view->out_width, view->mirror, (int)first_column - view->left);
    int next = decoder->rows.first, in_block = 0, block_rows = 0;
    JDIMENSION to_skip = (JDIMENSION)(view->top + next);
    if (to_skip && jpeg_skip_scanlines(info, to_skip) != to_skip) {
        decline(decoder, "its rows end early");
    }
    for (int y = 0; y < view->out_height; y++) {
        for (; next < decoder->rows.ends[y]; next++, in_block++) {
            if (in_block == block_rows) {
                block_rows = read_block(decoder, pointers, decoder->rows.end - next);
                in_block = 0;
            }
            if (next >= decoder->rows.starts[y]) {
                uint16_t *row = decoder->ring + stride * (size_t)(next % decoder->rows.taps);
                resize_row(decoder, pointers[in_block], view->out_width, row);
            }
        }
        size_t count = (size_t)view->out_width * 3;
        mix_rows(decoder, y, stride, count, out + (size_t)y * count);
    }
}

/* Write uint8 RGB [out_height, out_width, 3]. Returns 1, or 0 where it is declined; `decoder->cause` then says why. */
static int decode_view(Decoder *decoder, const uint8_t *data, size_t num_bytes, const View *view, uint8_t *out) {
    struct jpeg_decompress_struct *info = &decoder->info;
    if (setjmp(decoder->on_error)) {
        jpeg_abort_decompress(info);
        return 0;
    }
    jpeg_mem_src(info, data, (unsigned long)num_bytes);
    jpeg_read_header(info, TRUE);
    check_header(decoder, view);
    info->out_color_space = JCS_RGB;
    info->scale_num = 1;
    info->scale_denom = (unsigned)view->denominator;
    jpeg_calc_output_dimensions(info);
    if ((int)info->output_height - view->height < view->top || (int)info->output_width - view->width < view->left) {
        decline(decoder, "the box lies outside of it");
    }
    int wide = view->antialias;
    fill_axis(decoder, &decoder->rows, view->height, view->full_height, view->out_top, view->out_height, wide);
    fill_axis(decoder, &decoder->columns, view->width, view->full_width, view->out_left, view->out_width, wide);
    jpeg_start_decompress(info);
    decode_rows(decoder, view, out);
    if (!has_end(info)) {
        decline(decoder, "it is truncated");
    }
    jpeg_abort_decompress(info);
    return 1;
}

static int is_view(const View *view) {
    const int sides[] = {view->stored_height, view->stored_width, view->height, view->width, view->full_height,
                         view->full_width, view->out_height, view->out_width};
    for (size_t number = 0; number < sizeof sides / sizeof *sides; number++) {
        if (sides[number] < 1 || sides[number] > MAX_SIDE) {
            return 0;
        }
    }
    int denominator = view->denominator;
    return (denominator == 1 || denominator == 2 || denominator == 4 || denominator == 8)
        && view->top >= 0 && view->left >= 0 && view->out_top >= 0 && view->out_left >= 0
        && view->out_height <= view->full_height && view->out_top <= view->full_height - view->out_height
        && view->out_width <= view->full_width && view->out_left <= view->full_width - view->out_width;
}

#ifndef MPLOAD_JPEG_WITHOUT_PYTHON
#define PY_SSIZE_T_CLEAN
#include <Python.h>

typedef struct {
    Decoder *at_rest;   /* as many as have ever been at work at one time; whoever holds the GIL may take one */
} State;

static PyObject *write_pixels(PyObject *module, Py_buffer *data, Py_buffer *out, View *view) {
    if (out->ndim != 3 || out->itemsize != 1 || out->shape[2] != 3 || out->shape[0] > MAX_SIDE
        || out->shape[1] > MAX_SIDE) {
        PyErr_SetString(PyExc_ValueError, "out must be uint8 [height, width, 3]");
        return NULL;
    }
    view->out_height = (int)out->shape[0];
    view->out_width = (int)out->shape[1];
    if (!is_view(view)) {
        PyErr_SetString(PyExc_ValueError, "a number of the view is out of range");
        return NULL;
    }
    State *state = PyModule_GetState(module);
    Decoder *decoder = state->at_rest;
    if (decoder != NULL) {
        state->at_rest = decoder->next;
    } else if ((decoder = new_decoder()) == NULL) {
        return PyErr_NoMemory();
    }
    int done;
    Py_BEGIN_ALLOW_THREADS
    done = decode_view(decoder, data->buf, (size_t)data->len, view, out->buf);
    Py_END_ALLOW_THREADS
    PyObject *result = done ? Py_NewRef(Py_None) : PyUnicode_DecodeLocale(decoder->cause, "surrogateescape");
    decoder->next = state->at_rest;
    state->at_rest = decoder;
    return result;
}

static int read_ints(PyObject *tuple, Py_ssize_t count, int *const *ints) {
    if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != count) {
        PyErr_Format(PyExc_TypeError, "a tuple of %zd integers is wanted, got %R", count, tuple);
        return 0;
    }
    for (Py_ssize_t place = 0; place < count; place++) {
        long value = PyLong_AsLong(PyTuple_GetItem(tuple, place));
        if (value == -1 && PyErr_Occurred()) {
            return 0;
        }
        *ints[place] = value < 0 || value > INT_MAX ? -1 : (int)value;  /* `is_view` refuses what is negative */
    }
    return 1;
}

static int read_view(PyObject *from, View *view) {  /* faster than nested formats of PyArg_ParseTuple */
    PyObject *size, *box, *full, *corner;
    return PyArg_ParseTuple(
            from, "OiOOOpp:StoredView", &size, &view->denominator, &box, &full, &corner, &view->mirror,
            &view->antialias)
        && read_ints(size, 2, (int *[]){&view->stored_height, &view->stored_width})
        && read_ints(box, 4, (int *[]){&view->top, &view->left, &view->height, &view->width})
        && read_ints(full, 2, (int *[]){&view->full_height, &view->full_width})
        && read_ints(corner, 2, (int *[]){&view->out_top, &view->out_left});
}

PyDoc_STRVAR(decode_doc,
"decode(data, view, out)\n--\n\n"
"Write a view of a JPEG, as `mpload.images.jpeg.StoredView` says, into `out`, uint8 [height, width, 3], C-contiguous.\n\n"
"Returns None, or why it was declined; `out` then holds anything.");

static PyObject *decode(PyObject *module, PyObject *args) {
    Py_buffer data, out;
    View view;
    PyObject *numbers, *target, *result = NULL;
    if (!PyArg_ParseTuple(args, "y*O!O:decode", &data, &PyTuple_Type, &numbers, &target)) {
        return NULL;
    }
    if (read_view(numbers, &view) && PyObject_GetBuffer(target, &out, PyBUF_WRITABLE | PyBUF_ND) == 0) {
        result = write_pixels(module, &data, &out, &view);
        PyBuffer_Release(&out);
    }
    PyBuffer_Release(&data);
    return result;
}

static int start_module(PyObject *module) {
    char version[32];
    int number = LIBJPEG_TURBO_VERSION_NUMBER;  /* 2001005 is 2.1.5 */
    snprintf(version, sizeof version, "%d.%d.%d", number / 1000000, number / 1000 % 1000, number % 1000);
    return PyModule_AddStringConstant(module, "LIBJPEG_TURBO_VERSION", version);
}

static void free_module(void *module) {
    State *state = PyModule_GetState(module);
    while (state != NULL && state->at_rest != NULL) {
        Decoder *decoder = state->at_rest;
        state->at_rest = decoder->next;
        free_decoder(decoder);
    }
}

static PyMethodDef methods[] = {{"decode", decode, METH_VARARGS, decode_doc}, {NULL, NULL, 0, NULL}};
static PyModuleDef_Slot slots[] = {{Py_mod_exec, start_module}, {0, NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "mpload.images._jpeg",
    .m_doc = "Parts of JPEGs, decoded and resized into the caller's pixels.",
    .m_size = sizeof(State),
    .m_methods = methods,
    .m_slots = slots,
    .m_free = free_module,
};

PyMODINIT_FUNC PyInit__jpeg(void) {
    return PyModuleDef_Init(&definition);
}
#endif

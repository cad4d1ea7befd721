/* The resizing arithmetic. A triangle filter is applied to rows first, then to columns; pixel centres lie at halves.

   The product of a value and its weight is rounded down to 1/256 before products are added. _resize_simd.c has faster
   loops with the same results. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "_decoder.h"

void fill_axis(Decoder *decoder, Axis *axis, int length, int full, int out_first, int count, int antialias) {
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
        int start = (int)(centre - support + 0.5), end = (int)(centre + support + 0.5);
        start = start < 0 ? 0 : start;
        end = end > length ? length : end;
        end = end > start + taps ? start + taps : end;  /* drops what rounding added; its weight is close to 0 */
        axis->starts[out] = start;
        axis->ends[out] = end;
        double sum = 0, exact[MAX_TAPS];
        int num = end - start, left_over = 65536, largest = 0;
        for (int tap = 0; tap < num; tap++) {
            double distance = fabs(start + tap + 0.5 - centre);
            double weight = 1 - (support > 1 ? distance / support : distance);
            exact[tap] = weight > 0 ? weight : 0;
            sum += exact[tap];
        }
        uint16_t *weights = axis->weights + (size_t)out * (size_t)taps;
        for (int tap = 0; tap < num; tap++) {
            int weight = (int)(exact[tap] / sum * 65536);
            weights[tap] = (uint16_t)(weight > 65535 ? 65535 : weight);
            left_over -= weights[tap];
            largest = exact[tap] > exact[largest] ? tap : largest;
        }
        for (int tap = num; tap < taps; tap++) {
            weights[tap] = 0;
        }
        left_over += weights[largest];  /* so that the sum is 1, or as close to it as 16 bits allow */
        weights[largest] = (uint16_t)(left_over > 65535 ? 65535 : left_over);
    }
    axis->first = axis->starts[0];
    axis->end = axis->ends[count - 1];
}

/* Choose the bytes of a window that a pair of columns takes. Returns 0 if the columns lie too far apart. */
static int fill_pair(Resizer *resizer, int pair) {
    const uint32_t *offsets = resizer->offsets + 2 * (size_t)pair;
    uint32_t window = offsets[0] < offsets[1] ? offsets[0] : offsets[1];
    uint8_t *picks = resizer->picks + (size_t)pair * WINDOW_BYTES;
    resizer->windows[pair] = window;
    memset(picks, NO_BYTE, WINDOW_BYTES);
    for (int column = 0; column < 2; column++, picks += 2 * COLUMN_LANES) {
        uint32_t at = offsets[column] - window;
        if (at > WINDOW_BYTES - 6) {  /* two pixels */
            return 0;
        }
        for (int colour = 0; colour < 3; colour++) {  /* into the upper byte of a lane */
            picks[2 * colour + 1] = (uint8_t)(at + (uint32_t)colour);
        }
    }
    return 1;
}

static void fill_pairs(Resizer *resizer, size_t num_columns) {
    resizer->are_pairs_near = 1;
    for (int pair = 0; pair < (int)num_columns / 2 && resizer->are_pairs_near; pair++) {
        resizer->are_pairs_near = fill_pair(resizer, pair);
    }
}

/* Where columns begin in decoded rows, and how many source pixels they need. */
static void fill_offsets(Decoder *decoder, Resizer *resizer, int count, int mirror, int origin) {
    const Axis *columns = &resizer->columns;
    size_t num_offsets = (size_t)count + WIDE_LANES;
    GROW(decoder, resizer->offsets, num_offsets * sizeof *resizer->offsets);
    int taps = 2;  /* an even number, as few as all columns can do with */
    for (int out = 0; out < count; out++) {
        int column = mirror ? count - 1 - out : out, used = columns->ends[column] - columns->starts[column];
        taps = used > taps ? (used + 1) / 2 * 2 : taps;
        resizer->offsets[out] = 3 * (uint32_t)(columns->starts[column] - origin);
    }
    for (size_t out = (size_t)count; out < num_offsets; out++) {  /* fill up the last group; the weights are 0 */
        resizer->offsets[out] = resizer->offsets[count - 1];
    }
    resizer->column_taps = taps;
}

void fill_lanes(Decoder *decoder, Resizer *resizer, int count, int mirror, int origin) {
    const Axis *columns = &resizer->columns;
    fill_offsets(decoder, resizer, count, mirror, origin);
    resizer->is_wide = resizer->simd == AVX512 && fill_wide_lanes(decoder, resizer, count, mirror);
    if (resizer->is_wide) {
        return;
    }
    size_t num_groups = ((size_t)count + GROUP_COLUMNS - 1) / GROUP_COLUMNS, num_columns = num_groups * GROUP_COLUMNS;
    size_t num_lanes = num_groups * (size_t)resizer->column_taps * GROUP_LANES;
    GROW(decoder, resizer->lanes, num_lanes * sizeof *resizer->lanes);
    GROW(decoder, resizer->windows, num_columns / 2 * sizeof *resizer->windows);
    GROW(decoder, resizer->picks, num_columns / 2 * WINDOW_BYTES);
    memset(resizer->lanes, 0, num_lanes * sizeof *resizer->lanes);
    for (int out = 0; out < count; out++) {
        const uint16_t *weights = weights_of(columns, mirror ? count - 1 - out : out);
        uint16_t *lanes = resizer->lanes + first_lane(out, resizer->column_taps);
        for (int tap = 0; tap < resizer->column_taps; tap++, lanes += GROUP_LANES) {
            lanes[0] = lanes[1] = lanes[2] = tap < columns->taps ? weights[tap] : 0;
        }
    }
    fill_pairs(resizer, num_columns);
}

void resize_row(const Resizer *resizer, const uint8_t *source, int count, uint16_t *result) {
    if (resizer->simd != PLAIN) {
        resize_row_simd(resizer, source, count, result);
        return;
    }
    for (int out = 0; out < count; out++) {
        const uint8_t *pixels = source + resizer->offsets[out];
        const uint16_t *weights = resizer->lanes + first_lane(out, resizer->column_taps);
        unsigned red = 0, green = 0, blue = 0;
        for (int tap = 0; tap < resizer->column_taps; tap++, pixels += 3, weights += GROUP_LANES) {
            unsigned weight = *weights;
            red += pixels[0] * weight >> 8;
            green += pixels[1] * weight >> 8;
            blue += pixels[2] * weight >> 8;
        }
        result[3 * (size_t)out] = (uint16_t)red;
        result[3 * (size_t)out + 1] = (uint16_t)green;
        result[3 * (size_t)out + 2] = (uint16_t)blue;
    }
}

#define PART(value, weight) ((uint16_t)(((uint32_t)(value) * (uint32_t)(weight)) >> 16))

static void mix_two(const uint16_t *a, const uint16_t *b, const uint16_t *weights, size_t count, uint8_t *restrict out) {
    uint16_t of_a = weights[0], of_b = weights[1];
    for (size_t at = 0; at < count; at++) {
        out[at] = (uint8_t)((uint16_t)(PART(a[at], of_a) + PART(b[at], of_b) + 128) >> 8);
    }
}

/* The loop over taps is outside, since compilers use SIMD instructions for a loop over the values of a row. */
static void mix_many(
    const uint16_t *const *rows, const uint16_t *weights, int taps, size_t count, uint16_t *restrict sums,
    uint8_t *restrict out
) {
    memset(sums, 0, count * sizeof *sums);
    for (int tap = 0; tap < taps; tap++) {
        const uint16_t *row = rows[tap];
        uint16_t weight = weights[tap];
        for (size_t at = 0; at < count; at++) {
            sums[at] = (uint16_t)(sums[at] + PART(row[at], weight));
        }
    }
    for (size_t at = 0; at < count; at++) {
        out[at] = (uint8_t)((uint16_t)(sums[at] + 128) >> 8);
    }
}

void mix_rows(Resizer *resizer, int out, size_t stride, size_t count, uint8_t *restrict result) {
    const Axis *axis = &resizer->rows;
    const uint16_t *rows[MAX_TAPS], *weights = weights_of(axis, out);
    int taps = axis->ends[out] - axis->starts[out];
    for (int tap = 0; tap < taps; tap++) {
        rows[tap] = resizer->ring + stride * (size_t)((axis->starts[out] + tap) % axis->taps);
    }
    if (resizer->simd >= AVX2) {
        mix_rows_avx2(rows, weights, taps, count, result);
    } else if (taps <= 2) {
        mix_two(rows[0], rows[taps - 1], weights, count, result);
    } else {
        mix_many(rows, weights, taps, count, resizer->ring + stride * (size_t)axis->taps, result);
    }
}

void start_resizer(Decoder *decoder, Resizer *resizer, const View *view, uint8_t *out) {
    int wide = view->antialias;
    fill_axis(decoder, &resizer->rows, view->height, view->full_height, view->out_top, view->out_height, wide);
    fill_axis(decoder, &resizer->columns, view->width, view->full_width, view->out_left, view->out_width, wide);
    resizer->is_copied = view->full_height == view->height && view->full_width == view->width && !view->mirror;
    if (resizer->is_copied) {
        resizer->rows.end = resizer->rows.first + view->out_height;
    }
    resizer->view = *view;
    resizer->out = out;
    resizer->next = resizer->rows.first;
    resizer->num_made = 0;
    resizer->simd = decoder->simd;
}

/* Values from one row of the ring to the next. Each begins at a cache line. */
static size_t stride_of(const View *view) {
    return (3 * (size_t)view->out_width + PADDING_BYTES + WIDE_LANES - 1) / WIDE_LANES * WIDE_LANES;
}

void set_first_column(Decoder *decoder, Resizer *resizer, int first_column) {
    const View *view = &resizer->view;
    if (resizer->is_copied) {
        resizer->copied_from = 3 * (size_t)(view->left + view->out_left - first_column);
        return;
    }
    fill_lanes(decoder, resizer, view->out_width, view->mirror, first_column - view->left);
    GROW(decoder, resizer->ring, stride_of(view) * (size_t)(resizer->rows.taps + 1) * sizeof(uint16_t));
}

void take_row(Resizer *resizer, const uint8_t *row) {
    const Axis *rows = &resizer->rows;
    int width = resizer->view.out_width, number = resizer->next++;
    size_t count = 3 * (size_t)width, stride = stride_of(&resizer->view);
    if (resizer->is_copied) {
        memcpy(resizer->out + count * (size_t)resizer->num_made++, row + resizer->copied_from, count);
        return;
    }
    if (number >= rows->starts[resizer->num_made]) {
        resize_row(resizer, row, width, resizer->ring + stride * (size_t)(number % rows->taps));
    }
    while (resizer->num_made < resizer->view.out_height && rows->ends[resizer->num_made] <= resizer->next) {
        mix_rows(resizer, resizer->num_made, stride, count, resizer->out + count * (size_t)resizer->num_made);
        resizer->num_made++;
    }
}

void free_resizer(Resizer *resizer) {
    void *buffers[] = {resizer->rows.starts, resizer->rows.ends, resizer->rows.weights, resizer->columns.starts,
                       resizer->columns.ends, resizer->columns.weights, resizer->ring, resizer->lanes,
                       resizer->offsets, resizer->windows, resizer->picks};
    for (size_t number = 0; number < sizeof buffers / sizeof *buffers; number++) {
        free(buffers[number]);
    }
}

int resize_view(Decoder *decoder, const uint8_t *pixels, const View *view, uint8_t *out) {
    if (setjmp(decoder->on_error)) {
        return 0;
    }
    if (view->top > view->stored_height - view->height || view->left > view->stored_width - view->width) {
        decline(decoder, "the box lies outside of it");
    }
    GROW(decoder, decoder->resizers, sizeof *decoder->resizers);
    Resizer *resizer = decoder->resizers;
    start_resizer(decoder, resizer, view, out);
    set_first_column(decoder, resizer, 0);
    const uint8_t *box = pixels + 3 * (size_t)view->stored_width * (size_t)view->top;
    for (int row = resizer->rows.first; row < resizer->rows.end; row++) {
        take_row(resizer, box + 3 * (size_t)view->stored_width * (size_t)row);
    }
    return 1;
}

/* Decode all views of a photo in one pass.

   The scan is decoded once. Each scale has a libjpeg-turbo decoder of its own, which turns the coefficients into rows;
   the scales take turns, a row of MCUs at a time. Each row is handed to all views of its scale. */

#include <stdlib.h>
#include <string.h>

#include "_decoder.h"

/* The part of a scaled image around the boxes of all views. */
typedef struct {
    const View *view;       /* one of them; NULL if there is none */
    int top, bottom, left, right;
} Part;

static int least(int a, int b) {
    return a < b ? a : b;
}

static int most(int a, int b) {
    return a > b ? a : b;
}

static int scale_of(const View *view) {
    return view->denominator == 8 ? 3 : view->denominator / 2;
}

/* The work to decode the Huffman codes down to row `bottom` of the whole photo, in units of the time that one pixel
   takes. */
static int64_t work_of_codes(const View *view, int bottom) {
    return (int64_t)view->denominator * bottom * view->stored_width;
}

/* The work to decode the colours of some pixels, in the same units. On photographs it takes about the same time as the
   codes do; at a smaller scale it takes less, but not in proportion to the pixels. */
static int64_t work_of_colours(const View *view, int height, int width) {
    return (int64_t)view->denominator * height * width;
}

/* Whether it takes no more work to decode the views together than to decode each of them alone. */
static int is_less_work(const View *views, size_t count) {
    Part parts[NUM_SCALES] = {{0}};
    int64_t alone = 0, codes = 0, colours = 0;
    for (size_t number = 0; number < count; number++) {
        const View *view = &views[number];
        Part *part = &parts[scale_of(view)];
        int bottom = view->top + view->height, right = view->left + view->width, is_first = part->view == NULL;
        part->top = is_first ? view->top : least(part->top, view->top);
        part->left = is_first ? view->left : least(part->left, view->left);
        part->bottom = most(part->bottom, bottom);
        part->right = most(part->right, right);
        part->view = view;
        alone += work_of_codes(view, bottom) + work_of_colours(view, view->height, view->width);
        codes = work_of_codes(view, bottom) > codes ? work_of_codes(view, bottom) : codes;
    }
    for (int scale = 0; scale < NUM_SCALES; scale++) {
        const Part *part = &parts[scale];
        if (part->view != NULL) {
            colours += work_of_colours(part->view, part->bottom - part->top, part->right - part->left);
        }
    }
    return codes + colours <= alone;
}

static int is_needed(int denominator, const View *views, size_t count) {
    for (size_t number = 0; number < count; number++) {
        if (views[number].denominator == denominator) {
            return 1;
        }
    }
    return 0;
}

/* Returns 0 if memory runs out. */
static int gather_scales(Decoder *decoder, const View *views, size_t count, Together *scales) {
    scales->count = 0;
    for (int denominator = 1; denominator <= 8; denominator *= 2) {
        if (!is_needed(denominator, views, count)) {
            continue;
        }
        Decoder *scale = decoder;
        if (scales->count > 0) {
            Decoder **other = &decoder->others[scales->count - 1];
            *other = *other == NULL ? new_decoder(0) : *other;
            scale = *other;
        }
        if (scale == NULL) {
            return 0;
        }
        scale->simd = decoder->simd;
        scale->shared = decoder->huffman;
        scales->denominators[scales->count] = denominator;
        scales->decoders[scales->count++] = scale;
    }
    return 1;
}

static void open_scales(
    const Together *scales, const uint8_t *data, size_t num_bytes, const View *views, uint8_t *const *outs, size_t count
) {
    for (int number = 0; number < scales->count; number++) {
        Decoder *scale = scales->decoders[number];
        int is_open = 0;
        for (size_t view = 0; view < count; view++) {
            if (views[view].denominator != scales->denominators[number]) {
                continue;
            }
            if (!is_open) {
                open_scale(scale, data, num_bytes, &views[view]);
                is_open = 1;
            }
            add_view(scale, &views[view], outs[view]);
        }
        start_scale(scale);
    }
}

/* `strands`: whether rows are decoded by strands, which put coefficients where several scales share them. */
static void take_over_scales(Together *scales, int strands) {
    Huffman *huffman = scales->decoders[0]->huffman;
    int first_row = MAX_SIDE;
    for (int number = 0; number < scales->count; number++) {
        first_row = least(first_row, scales->denominators[number] * scales->decoders[number]->next_row);
    }
    for (int number = 0; number < scales->count; number++) {
        Decoder *scale = scales->decoders[number];
        JDIMENSION left = scale->first_column, right = scale->end_column;
        scales->is_ours = scales->count == 1 && !strands
            ? take_over(huffman, &scale->info, left, right)
            : take_over_shared(huffman, &scale->reader, number == 0, &scale->info, left, right, first_row);
        if (!scales->is_ours && (scales->count > 1 || !strands)) {
            decline(scale, "libjpeg-turbo decodes its Huffman codes");
        }
    }
}

void stop_together(Together *work) {
    for (int number = 0; number < work->count; number++) {
        jpeg_abort_decompress(&work->decoders[number]->info);
    }
}

int begin_together(
    Together *work, Decoder *decoder, int strands, const uint8_t *data, size_t num_bytes, const View *views,
    uint8_t *const *outs, size_t count
) {
    if (count == 0 || decoder->huffman == NULL || !is_less_work(views, count)
        || !gather_scales(decoder, views, count, work)) {
        return 0;
    }
    decoder->huffman->rows.mode = NO_ROWS;
    for (int number = 0; number < work->count; number++) {
        if (setjmp(work->decoders[number]->on_error)) {
            stop_together(work);
            return 0;
        }
    }
    open_scales(work, data, num_bytes, views, outs, count);
    take_over_scales(work, strands);
    const struct jpeg_decompress_struct *info = &decoder->info;
    work->strip_rows = DCTSIZE * (info->comps_in_scan > 1 ? info->max_v_samp_factor : 1);
    work->num_rows = (int)info->image_height;
    work->next_row = 0;
    return 1;
}

int show_strip(Together *work) {
    for (int number = 0; number < work->count; number++) {
        if (setjmp(work->decoders[number]->on_error)) {
            stop_together(work);
            return 0;
        }
    }
    int end = work->next_row + work->strip_rows;
    for (int number = 0; number < work->count; number++) {
        show_rows(work->decoders[number], end >= work->num_rows ? MAX_SIDE : end / work->denominators[number]);
    }
    work->next_row = end;
    if (is_shown(work)) {
        for (int number = 0; number < work->count; number++) {
            close_scale(work->decoders[number]);
        }
    }
    return 1;
}

int num_strips(const Together *work) {
    int num_needed = 0;
    for (int number = 0; number < work->count; number++) {
        int end = work->decoders[number]->end_row * work->denominators[number];
        num_needed = most(num_needed, (end + work->strip_rows - 1) / work->strip_rows);
    }
    return num_needed;
}

int is_shown(const Together *work) {
    for (int number = 0; number < work->count; number++) {
        if (work->decoders[number]->next_row < work->decoders[number]->end_row) {
            return 0;
        }
    }
    return 1;
}

int decode_together(
    Decoder *decoder, const uint8_t *data, size_t num_bytes, const View *views, uint8_t *const *outs, size_t count
) {
    Together work;
    int is_made = begin_together(&work, decoder, 0, data, num_bytes, views, outs, count);
    while (is_made && !is_shown(&work)) {
        is_made = show_strip(&work);
    }
    return is_made;
}

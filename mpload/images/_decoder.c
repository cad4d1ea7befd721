/* Decode part of a JPEG, resize it and mirror it, and write the result straight into the caller's array.

   Only the rows and columns that the result needs are decoded, and decoding stops after the last of these rows. Each
   source row is resized horizontally once, into one of a few row buffers. Rows of the result are mixed from these.

   Unusual files are declined: CMYK, more or fewer than 8 bits per sample, damage, missing scans, and anything that makes
   libjpeg warn. The caller then uses a slower decoder, which handles the file or reports what is wrong. Upsampling is
   always smooth ("fancy"): the plain kind in libjpeg-turbo 2.1 produces wrong pixels, or crashes, when rows or columns
   are left out. */

#include <stdlib.h>
#include <string.h>

#include "_complete.h"
#include "_decoder.h"
#include "_huffman.h"

enum {
    BLOCK_ROWS = 8,     /* rows requested from libjpeg at a time */
    MARGIN = 2,         /* neighbouring columns that smooth upsampling uses on each side */
    UNALIGNED_BYTES = 8 /* from a multiple of 16 to a decoded row: libjpeg-turbo writes aligned rows past the caches */
};

static void fail(j_common_ptr common) {
    Decoder *decoder = (Decoder *)common->client_data;
    common->err->format_message(common, decoder->cause);
    longjmp(decoder->on_error, 1);
}

static void on_message(j_common_ptr common, int level) {
    if (level < 0) {  /* a warning: the slower decoder judges whether it affects the pixels */
        fail(common);  /* other messages are dropped */
    }
}

void decline(Decoder *decoder, const char *cause) {
    snprintf(decoder->cause, sizeof decoder->cause, "%s", cause);
    longjmp(decoder->on_error, 1);
}

void *grow(Decoder *decoder, void *buffer, size_t *held_bytes, size_t bytes) {
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
    decoder->simd = best_simd(NULL);
    return 1;
}

Decoder *new_decoder(int with_huffman) {
    Decoder *decoder = calloc(1, sizeof *decoder);
    if (decoder != NULL && !set_up(decoder)) {
        free(decoder);
        decoder = NULL;
    }
    if (decoder != NULL && with_huffman && (decoder->huffman = calloc(1, sizeof *decoder->huffman)) == NULL) {
        free_decoder(decoder);
        decoder = NULL;
    }
    return decoder;
}

void free_decoder(Decoder *decoder) {
    jpeg_destroy_decompress(&decoder->info);
    if (decoder->huffman != NULL) {
        free_rows(&decoder->huffman->rows);
    }
    void *buffers[] = {decoder->rows.starts, decoder->rows.ends, decoder->rows.weights, decoder->columns.starts,
                       decoder->columns.ends, decoder->columns.weights, decoder->block, decoder->ring, decoder->lanes,
                       decoder->offsets, decoder->windows, decoder->picks, decoder->huffman};
    for (size_t number = 0; number < sizeof buffers / sizeof *buffers; number++) {
        free(buffers[number]);
    }
    free(decoder);
}

/* Whether the file has an end marker: a file that breaks off below the last decoded row is truncated too. mpload's
   Huffman decoder leaves `next_input_byte` where the scan begins, but accepts no scan with an end marker before the
   last row. */
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

/* libjpeg uses the tables of the last photo for a photo without tables. Empty them, so that no photo depends on
   another. */
static void forget_tables(struct jpeg_decompress_struct *info) {
    for (int number = 0; number < NUM_HUFF_TBLS; number++) {
        JHUFF_TBL *tables[] = {info->dc_huff_tbl_ptrs[number], info->ac_huff_tbl_ptrs[number]};
        for (int kind = 0; kind < 2; kind++) {
            if (tables[kind] != NULL) {
                memset(tables[kind]->bits, 0, sizeof tables[kind]->bits);
            }
        }
    }
    for (int number = 0; number < NUM_QUANT_TBLS; number++) {
        if (info->quant_tbl_ptrs[number] != NULL) {
            info->quant_tbl_ptrs[number]->quantval[0] = 0;
        }
    }
}

static int has_codes(const JHUFF_TBL *table) {
    static const UINT8 none[sizeof table->bits];
    return table != NULL && memcmp(table->bits, none, sizeof none) != 0;
}

/* Whether the file has tables for the components of the first scan. */
static int has_tables(const struct jpeg_decompress_struct *info) {
    for (int number = 0; number < info->comps_in_scan; number++) {
        const jpeg_component_info *component = info->cur_comp_info[number];
        int dc = component->dc_tbl_no, ac = component->ac_tbl_no, quant = component->quant_tbl_no;
        if (quant < 0 || quant >= NUM_QUANT_TBLS || info->quant_tbl_ptrs[quant] == NULL
            || info->quant_tbl_ptrs[quant]->quantval[0] == 0) {
            return 0;
        }
        if (!info->arith_code && !info->progressive_mode
            && (dc < 0 || dc >= NUM_HUFF_TBLS || ac < 0 || ac >= NUM_HUFF_TBLS
                || !has_codes(info->dc_huff_tbl_ptrs[dc]) || !has_codes(info->ac_huff_tbl_ptrs[ac]))) {
            return 0;
        }
    }
    return 1;
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
    if (!has_tables(info)) {
        decline(decoder, "it has no tables of its own");
    }
}

/* Decode several rows before the first is used: a processor stalls when it loads what it has only just stored. */
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

/* Write rows of the result that are neither resized nor mirrored; the first pixel is at `offset` bytes of a decoded
   row. */
static void copy_rows(Decoder *decoder, const View *view, JSAMPROW *pointers, size_t offset, uint8_t *out) {
    size_t row_bytes = (size_t)view->out_width * 3;
    for (int y = 0; y < view->out_height;) {
        int num_rows = read_block(decoder, pointers, view->out_height - y);
        for (int row = 0; row < num_rows; row++, y++) {
            memcpy(out + (size_t)y * row_bytes, pointers[row] + offset, row_bytes);
        }
    }
}

/* Whether `jpeg_crop_scanline` works. If a colour has less than half of the rows or columns (4:1:0, 4:1:1), libjpeg-turbo
   2.1 may leave parts of a row uninitialized at a smaller scale, and may change its upsampling in a narrow crop. */
static int can_leave_out_columns(const struct jpeg_decompress_struct *info) {
    return info->max_h_samp_factor <= 2 && info->max_v_samp_factor <= 2;
}

/* If `huffman` is NULL, libjpeg-turbo decodes the Huffman codes. */
static void decode_rows(Decoder *decoder, Huffman *huffman, const View *view, uint8_t *out) {
    struct jpeg_decompress_struct *info = &decoder->info;
    JDIMENSION first_column = (JDIMENSION)(view->left + decoder->columns.first);
    JDIMENSION end_column = (JDIMENSION)(view->left + decoder->columns.end) + MARGIN;
    first_column = first_column < MARGIN ? 0 : first_column - MARGIN;
    JDIMENSION num_columns = (end_column > info->output_width ? info->output_width : end_column) - first_column;
    if (!can_leave_out_columns(info)) {
        first_column = 0;
        num_columns = info->output_width;
    }
    if (num_columns < info->output_width) {
        jpeg_crop_scanline(info, &first_column, &num_columns);  /* moves it left, to a block's start */
    }
    decoder->is_huffman_used = huffman != NULL && take_over(huffman, info, first_column, first_column + num_columns);

    size_t row_bytes = ((size_t)info->output_width * 3 + PADDING_BYTES + 15) / 16 * 16;
    size_t stride = (size_t)view->out_width * 3 + PADDING_BYTES;
    GROW(decoder, decoder->block, UNALIGNED_BYTES + row_bytes * BLOCK_ROWS);
    GROW(decoder, decoder->ring, stride * (size_t)(decoder->rows.taps + 1) * sizeof(uint16_t));
    JSAMPROW pointers[BLOCK_ROWS];
    for (int row = 0; row < BLOCK_ROWS; row++) {
        pointers[row] = decoder->block + UNALIGNED_BYTES + row_bytes * (size_t)row;
    }

    int next = decoder->rows.first, in_block = 0, block_rows = 0;
    JDIMENSION to_skip = (JDIMENSION)(view->top + next);
    if (to_skip && jpeg_skip_scanlines(info, to_skip) != to_skip) {
        decline(decoder, "its rows end early");
    }
    if (view->full_height == view->height && view->full_width == view->width && !view->mirror) {
        copy_rows(decoder, view, pointers, 3 * ((size_t)(view->left + view->out_left) - first_column), out);
        return;
    }
    fill_lanes(decoder, view->out_width, view->mirror, (int)first_column - view->left);
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

static int try_view(
    Decoder *decoder, Huffman *huffman, const uint8_t *data, size_t num_bytes, const View *view, uint8_t *out
) {
    decoder->is_huffman_used = 0;
    struct jpeg_decompress_struct *info = &decoder->info;
    if (setjmp(decoder->on_error)) {
        jpeg_abort_decompress(info);
        return 0;
    }
    jpeg_mem_src(info, data, (unsigned long)num_bytes);
    forget_tables(info);
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
    if (!is_complete(info)) {
        decline(decoder, "it lacks bits of its coefficients");
    }
    decode_rows(decoder, huffman, view, out);
    if (!has_end(info)) {
        decline(decoder, "it is truncated");
    }
    jpeg_abort_decompress(info);
    return 1;
}

static int decode(
    Decoder *decoder, RowsMode mode, const uint8_t *data, size_t num_bytes, const View *view, uint8_t *out
) {
    if (decoder->huffman != NULL) {
        decoder->huffman->rows.mode = mode;
    }
    return try_view(decoder, decoder->huffman, data, num_bytes, view, out)
        /* libjpeg-turbo alone decides whether the file is damaged, and in which words. */
        || (decoder->is_huffman_used && try_view(decoder, NULL, data, num_bytes, view, out));
}

int decode_view(Decoder *decoder, const uint8_t *data, size_t num_bytes, const View *view, uint8_t *out) {
    return decode(decoder, NO_ROWS, data, num_bytes, view, out);
}

int decode_views(
    Decoder *decoder, const uint8_t *data, size_t num_bytes, const View *views, uint8_t *const *outs, size_t count
) {
    Huffman *huffman = decoder->huffman;
    if (huffman != NULL) {
        huffman->rows.mode = NO_ROWS;
        keep(huffman);
    }
    size_t made = 0;
    while (made < count && try_view(decoder, huffman, data, num_bytes, &views[made], outs[made])) {
        made++;
    }
    if (huffman != NULL) {
        forget(huffman);
    }
    return made == count;
}

int decode_view_with_rows(
    Decoder *decoder, const uint8_t *data, size_t num_bytes, const View *view, const uint8_t *entry,
    size_t entry_bytes, uint8_t *out
) {
    Huffman *huffman = decoder->huffman;
    if (huffman == NULL) {
        return decode_view(decoder, data, num_bytes, view, out);
    }
    Rows *rows = &huffman->rows;
    rows->entry_bytes = 0;
    if (read_rows(rows, entry, entry_bytes, data, num_bytes)) {
        rows->mode = USE_ROWS;
        if (try_view(decoder, huffman, data, num_bytes, view, out)) {
            return 1;
        }
    }
    int is_made = decode(decoder, NOTE_ROWS, data, num_bytes, view, out);
    if (is_made && decoder->is_huffman_used && rows->mode == NOTE_ROWS && skip_rest(huffman)) {
        make_entry(rows, data, num_bytes);
    }
    return is_made;
}

int is_view(const View *view) {
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

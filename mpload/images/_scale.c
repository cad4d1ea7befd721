/* Decode the rows and columns of a photo that views of one scale need, and hand them to the views.

   Only these rows and columns are decoded, and decoding stops after the last of these rows. Each source row is resized
   horizontally once for each view, into one of a few row buffers. Rows of the result are mixed from these. */

#include <string.h>

#include "_complete.h"
#include "_decoder.h"
#include "_huffman.h"

enum {
    BLOCK_ROWS = 8,     /* rows requested from libjpeg at a time */
    MARGIN = 2,         /* neighbouring columns that smooth upsampling uses on each side */
    UNALIGNED_BYTES = 8 /* from a multiple of 16 to a decoded row: libjpeg-turbo writes aligned rows past the caches */
};

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

/* libjpeg uses the tables of the last photo for a photo without tables. Make them all, but empty, so that neither the
   pixels nor the cause of a failure depend on another photo. */
static void empty_tables(struct jpeg_decompress_struct *info) {
    for (int number = 0; number < NUM_HUFF_TBLS; number++) {
        JHUFF_TBL **tables[] = {&info->dc_huff_tbl_ptrs[number], &info->ac_huff_tbl_ptrs[number]};
        for (int kind = 0; kind < 2; kind++) {
            if (*tables[kind] == NULL) {
                *tables[kind] = jpeg_alloc_huff_table((j_common_ptr)info);
            }
            memset((*tables[kind])->bits, 0, sizeof (*tables[kind])->bits);
        }
    }
    for (int number = 0; number < NUM_QUANT_TBLS; number++) {
        if (info->quant_tbl_ptrs[number] == NULL) {
            info->quant_tbl_ptrs[number] = jpeg_alloc_quant_table((j_common_ptr)info);
        }
        info->quant_tbl_ptrs[number]->quantval[0] = 0;
    }
}

static int is_empty(const JQUANT_TBL *table) {
    return table->quantval[0] == 0;  /* which no file's table has */
}

static int has_codes(const JHUFF_TBL *table) {
    static const UINT8 none[sizeof table->bits];
    return memcmp(table->bits, none, sizeof none) != 0;
}

/* Whether the file has tables for the components of the first scan. */
static int has_tables(const struct jpeg_decompress_struct *info) {
    for (int number = 0; number < info->comps_in_scan; number++) {
        const jpeg_component_info *component = info->cur_comp_info[number];
        int dc = component->dc_tbl_no, ac = component->ac_tbl_no, quant = component->quant_tbl_no;
        if (quant < 0 || quant >= NUM_QUANT_TBLS || is_empty(info->quant_tbl_ptrs[quant])) {
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

/* Whether the later scans of a file with several had tables too: libjpeg keeps the table of each component. */
static int had_tables(const struct jpeg_decompress_struct *info) {
    for (int number = 0; number < info->num_components; number++) {
        const JQUANT_TBL *table = info->comp_info[number].quant_table;
        if (table != NULL && is_empty(table)) {
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
    if (!info->progressive_mode && (info->Ss != 0 || info->Se != DCTSIZE2 - 1)) {
        decline(decoder, "its first scan lacks coefficients");  /* or it is lossless, and has none */
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

/* Whether `jpeg_crop_scanline` works. If a colour has less than half of the rows or columns (4:1:0, 4:1:1), libjpeg-turbo
   2.1 may leave parts of a row uninitialized at a smaller scale, and may change its upsampling in a narrow crop. */
static int can_leave_out_columns(const struct jpeg_decompress_struct *info) {
    return info->max_h_samp_factor <= 2 && info->max_v_samp_factor <= 2;
}

void open_scale(Decoder *decoder, const uint8_t *data, size_t num_bytes, const View *view) {
    struct jpeg_decompress_struct *info = &decoder->info;
    jpeg_mem_src(info, data, (unsigned long)num_bytes);
    empty_tables(info);
    jpeg_read_header(info, TRUE);
    check_header(decoder, view);
    info->out_color_space = JCS_RGB;
    info->scale_num = 1;
    info->scale_denom = (unsigned)view->denominator;
    jpeg_calc_output_dimensions(info);
    decoder->num_resizers = 0;
}

void add_view(Decoder *decoder, const View *view, uint8_t *out) {
    const struct jpeg_decompress_struct *info = &decoder->info;
    if ((int)info->output_height - view->height < view->top || (int)info->output_width - view->width < view->left) {
        decline(decoder, "the box lies outside of it");
    }
    GROW(decoder, decoder->resizers, (decoder->num_resizers + 1) * sizeof *decoder->resizers);
    Resizer *resizer = &decoder->resizers[decoder->num_resizers];
    start_resizer(decoder, resizer, view, out);
    JDIMENSION first_column = (JDIMENSION)(view->left + resizer->columns.first);
    JDIMENSION end_column = (JDIMENSION)(view->left + resizer->columns.end);
    int first_row = view->top + resizer->rows.first, end_row = view->top + resizer->rows.end;
    int is_first = decoder->num_resizers++ == 0;
    decoder->next_row = is_first || first_row < decoder->next_row ? first_row : decoder->next_row;
    decoder->end_row = is_first || end_row > decoder->end_row ? end_row : decoder->end_row;
    decoder->first_column = is_first || first_column < decoder->first_column ? first_column : decoder->first_column;
    decoder->end_column = is_first || end_column > decoder->end_column ? end_column : decoder->end_column;
}

void start_scale(Decoder *decoder) {
    struct jpeg_decompress_struct *info = &decoder->info;
    jpeg_start_decompress(info);
    if (!is_complete(info)) {
        decline(decoder, "it lacks bits of its coefficients");
    }
    if (!had_tables(info)) {
        decline(decoder, "it has no tables of its own");
    }
    JDIMENSION first = decoder->first_column < MARGIN ? 0 : decoder->first_column - MARGIN;
    JDIMENSION end = decoder->end_column + MARGIN, num_columns;
    num_columns = (end > info->output_width ? info->output_width : end) - first;
    if (!can_leave_out_columns(info)) {
        first = 0;
        num_columns = info->output_width;
    }
    if (num_columns < info->output_width) {
        jpeg_crop_scanline(info, &first, &num_columns);  /* moves it left, to a block's start */
    }
    decoder->first_column = first;
    decoder->end_column = first + num_columns;
    decoder->row_bytes = ((size_t)info->output_width * 3 + PADDING_BYTES + 15) / 16 * 16;
    GROW(decoder, decoder->block, UNALIGNED_BYTES + decoder->row_bytes * BLOCK_ROWS);
    for (size_t number = 0; number < decoder->num_resizers; number++) {
        set_first_column(decoder, &decoder->resizers[number], (int)first);
    }
    decoder->is_started = 0;
}

static void skip_rows(Decoder *decoder) {
    JDIMENSION to_skip = (JDIMENSION)decoder->next_row;
    if (to_skip && jpeg_skip_scanlines(&decoder->info, to_skip) != to_skip) {
        decline(decoder, "its rows end early");
    }
    decoder->is_started = 1;
}

void show_rows(Decoder *decoder, int end_row) {
    JSAMPROW rows[BLOCK_ROWS];
    for (int row = 0; row < BLOCK_ROWS; row++) {
        rows[row] = decoder->block + UNALIGNED_BYTES + decoder->row_bytes * (size_t)row;
    }
    end_row = end_row < decoder->end_row ? end_row : decoder->end_row;
    while (decoder->next_row < end_row) {
        if (!decoder->is_started) {
            skip_rows(decoder);
        }
        int num_rows = read_block(decoder, rows, end_row - decoder->next_row);
        for (size_t number = 0; number < decoder->num_resizers; number++) {
            Resizer *resizer = &decoder->resizers[number];
            for (int row = 0; row < num_rows; row++) {
                int in_box = decoder->next_row + row - resizer->view.top;
                if (in_box == resizer->next && in_box < resizer->rows.end) {
                    take_row(resizer, rows[row]);
                }
            }
        }
        decoder->next_row += num_rows;
    }
}

void close_scale(Decoder *decoder) {
    if (!has_end(&decoder->info)) {
        decline(decoder, "it is truncated");
    }
    jpeg_abort_decompress(&decoder->info);
}

/* Prepare the Huffman decoder for a scan, and use it instead of libjpeg-turbo's. */

#include <stdlib.h>
#include <string.h>

#include "_huffman.h"

/* The first two members of a private struct of libjpeg-turbo, as declared in its jpegint.h from version 2.0 to 3.2. The
   other members are not used. libjpeg-turbo calls `decode_mcu` with blocks filled with zeros, or with NULL in rows that
   `jpeg_skip_scanlines` skips; in single-scan files the first call comes after `jpeg_start_decompress` has returned. */
struct jpeg_entropy_decoder {
    void (*start_pass)(j_decompress_ptr info);
    boolean (*decode_mcu)(j_decompress_ptr info, JBLOCKROW *blocks);
};

#if JPEG_LIB_VERSION >= 70
#define SCALED_SIZE(component) ((component)->DCT_h_scaled_size)
#define MIN_SCALED_SIZE(info) ((info)->min_DCT_h_scaled_size)
#else
#define SCALED_SIZE(component) ((component)->DCT_scaled_size)
#define MIN_SCALED_SIZE(info) ((info)->min_DCT_scaled_size)
#endif

enum {
    LONG_SCAN_BYTES = 10000,    /* here new tables save about as much time as making them takes, 35 us */
    MARGIN_ROWS = 2             /* rows of MCUs above the first that is shown, which upsampling may need */
};

static int is_understood(j_decompress_ptr info) {
    return !info->progressive_mode && !info->arith_code && !jpeg_has_multiple_scans(info)
        && info->comps_in_scan == info->num_components && info->Ss == 0 && info->Se == LAST_PLACE
        && info->Ah == 0 && info->Al == 0 && info->data_precision == 8 && info->unread_marker == 0;
}

static int are_legal(j_decompress_ptr info) {
    for (int component = 0; component < info->comps_in_scan; component++) {
        const jpeg_component_info *about = info->cur_comp_info[component];
        if (!is_legal(info->dc_huff_tbl_ptrs[about->dc_tbl_no], 15)
            || !is_legal(info->ac_huff_tbl_ptrs[about->ac_tbl_no], 255)) {
            return 0;
        }
    }
    return 1;
}

static int are_prepared(const Tables *tables, j_decompress_ptr info) {
    for (int component = 0; component < info->comps_in_scan; component++) {
        int dc = info->cur_comp_info[component]->dc_tbl_no, ac = info->cur_comp_info[component]->ac_tbl_no;
        if (!is_prepared(&tables->dc[dc], info->dc_huff_tbl_ptrs[dc])
            || !is_prepared(&tables->ac[ac].codes, info->ac_huff_tbl_ptrs[ac])) {
            return 0;
        }
    }
    return 1;
}

/* Use the tables of the photo beside this one if they are the same: two sets would not fit into the fastest cache. If
   they differ, use those that are free; the other photo may have borrowed this one's. If the other is not decoded now,
   what it used last is as good. */
static void choose_tables(Huffman *huffman, j_decompress_ptr info) {
    const Huffman *beside = huffman->beside;
    huffman->tables = &huffman->own;
    if (beside != NULL && beside->tables != NULL && are_prepared(beside->tables, info)) {
        huffman->tables = beside->tables;
    } else if (beside != NULL && beside->tables == &huffman->own) {
        huffman->tables = &huffman->beside->own;
    }
}

/* Returns 0 if the scan is short and its tables are new: making them would take longer than they save. They are made
   when the next photo has the same ones, as in data sets that one program wrote. */
static int prepare_tables(Huffman *huffman, j_decompress_ptr info) {
    if (!are_legal(info)) {
        return 0;
    }
    choose_tables(huffman, info);
    int are_ready = 1, at_once = info->src->bytes_in_buffer >= LONG_SCAN_BYTES;  /* up to the end of the file */
    unsigned prepared = 0;  /* a bit for each AC table, since components may share one */
    for (int component = 0; component < info->comps_in_scan; component++) {
        int dc = info->cur_comp_info[component]->dc_tbl_no, ac = info->cur_comp_info[component]->ac_tbl_no;
        prepare_dc_table(&huffman->tables->dc[dc], info->dc_huff_tbl_ptrs[dc]);
        if (!(prepared >> ac & 1)) {
            are_ready &= prepare_ac_table(&huffman->tables->ac[ac], info->ac_huff_tbl_ptrs[ac], at_once);
            prepared |= 1U << ac;
        }
    }
    return are_ready;
}

/* Decide what to do with the starts of rows in this scan. */
static void prepare_rows(Rows *rows, unsigned num_rows, unsigned num_components) {
    if (rows->mode == USE_ROWS && (rows->num_rows != num_rows || rows->num_components != num_components)) {
        rows->mode = NO_ROWS;
    }
    if (rows->mode == NOTE_ROWS && !reserve_rows(rows, num_rows, num_components)) {
        rows->mode = NO_ROWS;
    }
}

void keep(Huffman *huffman) {
    huffman->keeps = 1;
}

void forget(Huffman *huffman) {
    free(huffman->kept);
    huffman->kept = NULL;
    huffman->keeps = 0;
}

/* Make room for the coefficients of all MCUs, if they are to be kept and are not too many. */
static void make_room(Huffman *huffman) {
    size_t bytes = (size_t)huffman->num_rows * huffman->num_columns * (size_t)huffman->num_blocks * sizeof(JBLOCK);
    huffman->kept = bytes <= MAX_KEPT_BYTES ? malloc(bytes) : NULL;
    huffman->num_kept = 0;
    for (int number = 0; number < huffman->num_blocks && huffman->kept != NULL; number++) {
        huffman->blocks[number].needs_ac = 1;  /* another scale may need them */
    }
}

/* Go to the first MCU. */
static void start_scan(Huffman *huffman, j_decompress_ptr info) {
    huffman->num_blocks = info->blocks_in_MCU;
    for (int number = 0; number < info->blocks_in_MCU; number++) {
        int component = info->MCU_membership[number];
        const jpeg_component_info *about = info->cur_comp_info[component];
        huffman->blocks[number] = (BlockPlan){
            &huffman->tables->dc[about->dc_tbl_no], &huffman->tables->ac[about->ac_tbl_no],
            &huffman->predictors[component], SCALED_SIZE(about) > 1};
    }
    memset(huffman->predictors, 0, sizeof huffman->predictors);
    const uint8_t *data = info->src->next_input_byte;
    huffman->scan = data;
    huffman->bits = (BitReader){.next = data, .end = data + info->src->bytes_in_buffer};
    huffman->restart_interval = huffman->until_restart = info->restart_interval;
    huffman->next_restart = 0;
    huffman->row = huffman->column = 0;
    huffman->num_rows = info->MCU_rows_in_scan;
    huffman->num_columns = info->MCUs_per_row;
    prepare_rows(&huffman->rows, huffman->num_rows, (unsigned)info->comps_in_scan);
    if (huffman->keeps) {
        make_room(huffman);
    }
}

/* The columns of MCUs that hold columns `left` to `right` of the scaled image. */
static void find_columns(j_decompress_ptr info, JDIMENSION left, JDIMENSION right, unsigned *first, unsigned *end) {
    unsigned mcu_width = (unsigned)(MIN_SCALED_SIZE(info) * (info->comps_in_scan > 1 ? info->max_h_samp_factor : 1));
    *first = left / mcu_width;
    *end = (right + mcu_width - 1) / mcu_width;
}

int take_over(Huffman *huffman, j_decompress_ptr info, JDIMENSION left, JDIMENSION right) {
    if (!is_understood(info) || !prepare_tables(huffman, info)) {
        return 0;
    }
    find_columns(info, left, right, &huffman->first_shown, &huffman->end_shown);
    huffman->asked_row = huffman->asked_column = 0;
    if (huffman->kept == NULL) {
        start_scan(huffman, info);
    } else if (huffman->num_blocks != info->blocks_in_MCU || huffman->num_rows != info->MCU_rows_in_scan
               || huffman->num_columns != info->MCUs_per_row) {
        return 0;
    }
    info->entropy->decode_mcu = decode_mcu;
    return 1;
}

/* Make room for the coefficients of a few rows of MCUs. Returns 0 if they are too many. */
static int make_recent_room(Huffman *huffman) {
    size_t bytes = (size_t)RECENT_ROWS * huffman->num_columns * (size_t)huffman->num_blocks * sizeof(JBLOCK);
    if (bytes > huffman->recent_bytes && bytes <= MAX_RECENT_BYTES) {
        free(huffman->recent);
        huffman->recent = malloc(bytes);
        huffman->recent_bytes = huffman->recent == NULL ? 0 : bytes;
    }
    return bytes <= huffman->recent_bytes;
}

/* Start a scan for several scales. Returns 0 if they cannot be decoded in step. */
static int start_shared_scan(Huffman *huffman, j_decompress_ptr info, int first_row) {
    if (!prepare_tables(huffman, info)) {
        return 0;
    }
    start_scan(huffman, info);
    int first_mcu_row = first_row / (DCTSIZE * (info->comps_in_scan > 1 ? info->max_v_samp_factor : 1));
    huffman->first_recent = first_mcu_row < MARGIN_ROWS ? 0 : (unsigned)(first_mcu_row - MARGIN_ROWS);
    huffman->first_shown = huffman->num_columns;
    huffman->end_shown = 0;
    return make_recent_room(huffman);
}

int take_over_shared(
    Huffman *huffman, Reader *reader, int is_first, j_decompress_ptr info, JDIMENSION left, JDIMENSION right,
    int first_row
) {
    if (!is_understood(info) || (is_first && !start_shared_scan(huffman, info, first_row))) {
        return 0;
    }
    *reader = (Reader){0};
    find_columns(info, left, right, &reader->first_shown, &reader->end_shown);
    huffman->first_shown = reader->first_shown < huffman->first_shown ? reader->first_shown : huffman->first_shown;
    huffman->end_shown = reader->end_shown > huffman->end_shown ? reader->end_shown : huffman->end_shown;
    for (int number = 0; number < huffman->num_blocks; number++) {
        huffman->blocks[number].needs_ac |= SCALED_SIZE(info->cur_comp_info[info->MCU_membership[number]]) > 1;
    }
    info->entropy->decode_mcu = decode_shared_mcu;
    return 1;
}

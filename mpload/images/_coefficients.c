/* A JPEG's coefficients: their symbols counted, or written again with given Huffman tables. */

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#include "_coefficients.h"
#include "_complete.h"

enum { HEAD_BYTES = 17, MAX_SEGMENT_BYTES = 0xFFFF, MAX_DC_SIZE = 11, MAX_AC_SIZE = 10 };

/* From a place in zigzag order to the index in a block, which is stored row by row. */
static const uint8_t IN_BLOCK[DCTSIZE2] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,
    12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,
    35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
    58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
};

typedef struct {
    struct jpeg_error_mgr errors;
    struct jpeg_decompress_struct source;
    struct jpeg_compress_struct target;
    struct jpeg_destination_mgr destination;
    jmp_buf on_error;
    jvirt_barray_ptr *coefficients;         /* [component] */
    const struct jpeg_marker_struct *last;  /* the last marker of the header; NULL if there is none */
} Transcoder;

static void decline(j_common_ptr common) {
    longjmp(((Transcoder *)common->client_data)->on_error, 1);
}

static void on_message(j_common_ptr common, int level) {
    if (level < 0) {  /* a warning; other messages are dropped */
        decline(common);
    }
}

static Transcoder *new_transcoder(void) {
    Transcoder *transcoder = calloc(1, sizeof *transcoder);
    if (transcoder != NULL) {
        transcoder->source.err = transcoder->target.err = jpeg_std_error(&transcoder->errors);
        transcoder->errors.error_exit = decline;
        transcoder->errors.emit_message = on_message;
        transcoder->source.client_data = transcoder->target.client_data = transcoder;
    }
    return transcoder;
}

static void free_transcoder(Transcoder *transcoder) {
    jpeg_destroy_compress(&transcoder->target);
    jpeg_destroy_decompress(&transcoder->source);
    free(transcoder);
}

static void read_coefficients(Transcoder *transcoder, const uint8_t *data, size_t num_bytes) {
    struct jpeg_decompress_struct *source = &transcoder->source;
    jpeg_create_decompress(source);
    jpeg_mem_src(source, data, (unsigned long)num_bytes);
    jpeg_save_markers(source, JPEG_COM, MAX_SEGMENT_BYTES);
    for (int number = 0; number < 16; number++) {
        jpeg_save_markers(source, JPEG_APP0 + number, MAX_SEGMENT_BYTES);
    }
    jpeg_read_header(source, TRUE);
    for (jpeg_saved_marker_ptr marker = source->marker_list; marker != NULL; marker = marker->next) {
        transcoder->last = marker;
    }
    if (source->data_precision != 8) {
        decline((j_common_ptr)source);
    }
    transcoder->coefficients = jpeg_read_coefficients(source);
    if (!is_complete(source)) {
        decline((j_common_ptr)source);
    }
}

/* The number of bits of a value without its leading zeros. Symbols have room for 15, more than is legal; the values of
   damaged files may have more. */
static int size_of(int value) {
    int size = value == 0 ? 0 : 32 - __builtin_clz((unsigned)abs(value));
    return size < 15 ? size : 15;
}

static void count_block(const JCOEF *block, int predictor, int64_t *dc, int64_t *ac) {
    dc[size_of(block[0] - predictor)]++;
    int run = 0;
    for (int place = 1; place < DCTSIZE2; place++) {
        int value = block[IN_BLOCK[place]];
        if (value == 0) {
            run++;
            continue;
        }
        ac[0xF0] += run / 16;
        ac[run % 16 << 4 | size_of(value)]++;
        run = 0;
    }
    ac[0] += run > 0;
}

/* Count the blocks in the order of a scan, but without those that pad the last MCU of a row and the last row. */
static void count_component(Transcoder *transcoder, int number, int64_t *dc, int64_t *ac) {
    struct jpeg_decompress_struct *source = &transcoder->source;
    const jpeg_component_info *component = &source->comp_info[number];
    int is_alone = source->num_components == 1;
    JDIMENSION height = is_alone ? 1 : (JDIMENSION)component->v_samp_factor;  /* of an MCU, in blocks */
    JDIMENSION width = is_alone ? 1 : (JDIMENSION)component->h_samp_factor;
    int predictor = 0;
    for (JDIMENSION top = 0; top < component->height_in_blocks; top += height) {
        JBLOCKARRAY rows = source->mem->access_virt_barray(
            (j_common_ptr)source, transcoder->coefficients[number], top, height, FALSE);
        for (JDIMENSION left = 0; left < component->width_in_blocks; left += width) {
            for (JDIMENSION at = 0; at < height * width; at++) {
                JDIMENSION row = at / width, column = left + at % width;
                if (top + row < component->height_in_blocks && column < component->width_in_blocks) {
                    const JCOEF *block = rows[row][column];
                    count_block(block, predictor, dc, ac);
                    predictor = block[0];
                }
            }
        }
    }
}

static void count_all(Transcoder *transcoder, Counts counts) {
    J_COLOR_SPACE space = transcoder->source.jpeg_color_space;
    for (int number = 0; number < transcoder->source.num_components; number++) {
        int is_chroma = (space == JCS_YCbCr || space == JCS_YCCK) && (number == 1 || number == 2);
        count_component(transcoder, number, counts[2 * is_chroma], counts[2 * is_chroma + 1]);
    }
}

int count_symbols(const uint8_t *data, size_t num_bytes, Counts counts) {
    Transcoder *transcoder = new_transcoder();
    if (transcoder == NULL) {
        return 0;
    }
    if (setjmp(transcoder->on_error)) {
        free_transcoder(transcoder);
        return 0;
    }
    read_coefficients(transcoder, data, num_bytes);
    count_all(transcoder, counts);
    free_transcoder(transcoder);
    return 1;
}

static size_t num_symbols_of(const Table *table) {
    size_t num_symbols = 0;
    for (size_t at = 0; at < sizeof table->counts; at++) {
        num_symbols += table->counts[at];
    }
    return num_symbols;
}

/* Whether a table has only symbols of legal sizes, for which libjpeg-turbo's encoder has room. */
static int is_baseline(const Table *table, int is_ac) {
    for (size_t number = 0; number < num_symbols_of(table); number++) {
        int symbol = table->symbols[number];
        if (is_ac ? (symbol & 15) > MAX_AC_SIZE : symbol > MAX_DC_SIZE) {
            return 0;
        }
    }
    return 1;
}

int read_tables(const uint8_t *segment, size_t num_bytes, Table tables[NUM_KINDS]) {
    static const uint8_t NAMES[NUM_KINDS] = {0x00, 0x10, 0x01, 0x11};  /* as JPEGs name them */
    memset(tables, 0, NUM_KINDS * sizeof *tables);
    for (int kind = 0; kind < NUM_KINDS; kind++) {
        if (num_bytes < HEAD_BYTES || segment[0] != NAMES[kind]) {
            return 0;
        }
        memcpy(tables[kind].counts, segment + 1, sizeof tables[kind].counts);
        size_t num_symbols = num_symbols_of(&tables[kind]);
        if (num_symbols > NUM_SYMBOLS || num_symbols > num_bytes - HEAD_BYTES) {
            return 0;
        }
        memcpy(tables[kind].symbols, segment + HEAD_BYTES, num_symbols);
        if (!is_baseline(&tables[kind], kind % 2)) {
            return 0;
        }
        segment += HEAD_BYTES + num_symbols;
        num_bytes -= HEAD_BYTES + num_symbols;
    }
    return num_bytes == 0;
}

/* Whether all symbols of the file have a code; libjpeg-turbo's encoder does not check this. */
static int can_write(Transcoder *transcoder, const Table tables[NUM_KINDS]) {
    Counts counts = {{0}};
    count_all(transcoder, counts);
    for (int kind = 0; kind < NUM_KINDS; kind++) {
        for (size_t number = 0; number < num_symbols_of(&tables[kind]); number++) {
            counts[kind][tables[kind].symbols[number]] = 0;
        }
        for (int symbol = 0; symbol < NUM_SYMBOLS; symbol++) {
            if (counts[kind][symbol] != 0) {
                return 0;
            }
        }
    }
    return 1;
}

static void use_tables(struct jpeg_compress_struct *target, const Table tables[NUM_KINDS]) {
    for (int kind = 0; kind < NUM_KINDS; kind++) {
        JHUFF_TBL **slots = kind % 2 ? target->ac_huff_tbl_ptrs : target->dc_huff_tbl_ptrs;
        JHUFF_TBL **slot = &slots[kind / 2];
        if (*slot == NULL) {
            *slot = jpeg_alloc_huff_table((j_common_ptr)target);
        }
        memcpy((*slot)->bits + 1, tables[kind].counts, sizeof tables[kind].counts);
        memcpy((*slot)->huffval, tables[kind].symbols, sizeof tables[kind].symbols);
        (*slot)->sent_table = FALSE;
    }
    target->optimize_coding = FALSE;  /* which would make tables from the coefficients */
}

static void do_nothing(j_compress_ptr target) {
    (void)target;
}

static boolean when_full(j_compress_ptr target) {
    decline((j_common_ptr)target);
    return FALSE;
}

static int begins_with(const struct jpeg_marker_struct *marker, int kind, const char *name) {
    return marker->marker == kind && marker->data_length >= 5 && memcmp(marker->data, name, 5) == 0;
}

/* Copy the header's markers, among them the EXIF orientation and colour profiles, except those that libjpeg writes. */
static void copy_markers(Transcoder *transcoder) {
    struct jpeg_compress_struct *target = &transcoder->target;
    const struct jpeg_marker_struct *marker = transcoder->last == NULL ? NULL : transcoder->source.marker_list;
    for (; marker != NULL; marker = marker == transcoder->last ? NULL : marker->next) {
        if (!(target->write_JFIF_header && begins_with(marker, JPEG_APP0, "JFIF\0"))
            && !(target->write_Adobe_marker && begins_with(marker, JPEG_APP0 + 14, "Adobe"))) {
            jpeg_write_marker(target, marker->marker, marker->data, marker->data_length);
        }
    }
}

size_t rewrite(const uint8_t *data, size_t num_bytes, const Table tables[NUM_KINDS], uint8_t *out, size_t out_bytes) {
    Transcoder *transcoder = new_transcoder();
    if (transcoder == NULL) {
        return 0;
    }
    if (setjmp(transcoder->on_error)) {
        free_transcoder(transcoder);
        return 0;
    }
    read_coefficients(transcoder, data, num_bytes);
    if (!can_write(transcoder, tables)) {
        decline((j_common_ptr)&transcoder->source);
    }
    struct jpeg_compress_struct *target = &transcoder->target;
    jpeg_create_compress(target);
    transcoder->destination = (struct jpeg_destination_mgr){
        .next_output_byte = out, .free_in_buffer = out_bytes,
        .init_destination = do_nothing, .empty_output_buffer = when_full, .term_destination = do_nothing,
    };
    target->dest = &transcoder->destination;
    jpeg_copy_critical_parameters(&transcoder->source, target);
    use_tables(target, tables);
    jpeg_write_coefficients(target, transcoder->coefficients);
    copy_markers(transcoder);
    jpeg_finish_compress(target);
    size_t written_bytes = out_bytes - transcoder->destination.free_in_buffer;
    free_transcoder(transcoder);
    return written_bytes;
}

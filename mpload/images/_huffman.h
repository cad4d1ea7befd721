/* Huffman decoding of a JPEG's scan in place of libjpeg-turbo's, which is slower.

   _huffman_tables.c  builds lookup tables from the tables in the file
   _huffman_scan.c    prepares for a scan, and takes libjpeg-turbo's place
   _huffman.c         decodes a scan with them
   _bits.h            the bits of a scan, for those that decode it
   _huffman_shared.c  decodes a scan once for several scales
   _huffman_two.c     decodes the scans of two photos in turn
   _rows.c            keeps where the rows of MCUs begin; see _rows.h
   _huffman_test.c    tests whether the pixels are the same as with libjpeg-turbo's decoder

   Words: a *symbol* is what a Huffman code stands for. For the first coefficient of a block (DC) it is the size in bits
   of the difference from the block before. For the other coefficients (AC) it is a number of zeros to skip (the run)
   and the size in bits of the value after them. The bits of the value follow the code. Two AC symbols have no value:
   the end of the block, and a run of 16 zeros. A *place* is the number of a coefficient in zigzag order, 0 to 63. A
   *prefix* is the next few bits of the scan, the index of a lookup table. */

#ifndef MPLOAD_HUFFMAN_H
#define MPLOAD_HUFFMAN_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <jpeglib.h>

#include "_rows.h"

enum {
    MAX_CODE_BITS = 16,
    CODE_BITS = 9,          /* length of a prefix in Codes; few codes are longer */
    PAIR_BITS = 11,         /* length of a prefix in AcTable.pairs */
    SKIP_BITS = 11,         /* length of a prefix in AcTable.skips */
    MAX_SKIPPED_BITS = 18,  /* more than SKIP_BITS, since the last symbol's value may lie beyond the prefix */
    LAST_PLACE = 63,
    ENDS_BLOCK = 128,       /* flag in an advance; added to a place, it exceeds LAST_PLACE, which ends the loop */
    ADVANCE_MASK = 127,
    NO_ADVANCE = 127,       /* the table does not cover this prefix; larger than any block */
    MAX_KEPT_BYTES = 1 << 24,
    RECENT_ROWS = 4,        /* rows of MCUs that are kept for scales that are decoded in step */
    MAX_RECENT_BYTES = 1 << 22
};

typedef struct {
    uint8_t bits;       /* length of the code; 0 if it is undefined or too long for the table */
    uint8_t symbol;
} Code;

/* The codes of one table in the file. */
typedef struct {
    uint8_t counts[MAX_CODE_BITS + 1];      /* [length] number of codes of that length, as in the file */
    uint8_t symbols[256];                   /* in the order of their codes, as in the file */
    int is_filled;                          /* whether the members below, and tables derived from them, are filled in */
    uint32_t limits[MAX_CODE_BITS + 1];     /* [length] 16-bit prefixes below it begin with a code up to this length */
    int offsets[MAX_CODE_BITS + 1];         /* [length] a code of that length plus this is its index in `symbols` */
    Code prefixes[1 << CODE_BITS];
} Codes;

/* All that a prefix holds: one or two coefficients with their values, and perhaps the end of the block.

   The decoder always stores two values, which saves a branch. So an entry with one coefficient repeats it, and one that
   only ends the block stores a zero. */
typedef struct {
    int16_t values[2];
    uint8_t places[2];  /* relative to the coefficient before */
    uint8_t bits;       /* number of bits decoded */
    uint8_t advance;    /* number of places needed in the block for all of it, with ENDS_BLOCK if the block ends */
} Pair;

/* As many symbols as a prefix holds. Members are as in Pair. */
typedef struct {
    uint8_t bits, advance;
} Skip;

typedef struct {
    Codes codes;
    Pair pairs[1 << PAIR_BITS];
    Skip skips[2 << SKIP_BITS];     /* [1 << SKIP_BITS | prefix]; the first half holds shorter prefixes */
} AcTable;

/* The tables of a photo. They are kept for the next one, which often has the same. */
typedef struct {
    Codes dc[NUM_HUFF_TBLS];
    AcTable ac[NUM_HUFF_TBLS];
} Tables;

/* The bits of a scan up to the next marker. */
typedef struct {
    uint64_t window;            /* the next bits; the first is the most significant */
    int count;                  /* number of bits in the window */
    int missing;                /* number of those, at their end, that the data does not have. It only grows, up to
                                   UNDEFINED_CODE, so count < missing means that a missing bit was used */
    const uint8_t *next, *end;  /* bytes that are not in the window yet */
} BitReader;

typedef struct {
    const Codes *dc;
    const AcTable *ac;
    uint32_t *predictor;        /* the component's last DC coefficient; unsigned, as damaged files overflow it */
    int needs_ac;               /* 0 if the block becomes one pixel, as at 1/8 of the size */
} BlockPlan;

/* How far one of several scales that are decoded in step has come. */
typedef struct {
    unsigned asked_row, asked_column;   /* of the MCU that libjpeg-turbo asks for next */
    unsigned first_shown, end_shown;    /* columns */
} Reader;

typedef struct Huffman {
    BitReader bits;
    BlockPlan blocks[D_MAX_BLOCKS_IN_MCU];
    int num_blocks;                             /* in an MCU */
    uint32_t predictors[MAX_COMPS_IN_SCAN];
    const uint8_t *scan;                        /* its first byte */
    unsigned row, num_rows;                     /* row of the next MCU; rows of MCUs */
    unsigned column, num_columns;               /* column of the next MCU; MCUs in a row */
    unsigned asked_row, asked_column;           /* of the MCU that libjpeg-turbo asks for next, which may lie behind */
    Rows rows;                                  /* where rows begin, if that is known or wanted */
    int keeps;                                  /* whether coefficients are kept, to decode the photo again */
    JBLOCK *kept;                               /* [num_kept][num_blocks] those of the first MCUs; NULL before the first
                                                   decode, and if there is no room for all */
    size_t num_kept;                            /* MCUs; the next one is that of `row` and `column` */
    JBLOCK *recent;                             /* [RECENT_ROWS][num_columns][num_blocks] coefficients of the last rows
                                                   of MCUs, where several scales are decoded in step */
    size_t recent_bytes;
    unsigned first_recent;                      /* rows above are skipped */
    unsigned first_shown, end_shown;            /* other columns are skipped */
    unsigned restart_interval, until_restart;   /* in MCUs; the interval is 0 if there are no restart markers */
    int next_restart;                           /* number of the next restart marker, 0 to 7 */
    Tables own;
    Tables *tables;                             /* those in use: its own, or those of the photo beside it */
    struct Huffman *beside;                     /* of photos that are decoded in turn with these; may be NULL */
} Huffman;

/* A run of MCUs that is being decoded, or skipped, and may be left in the middle of a block. A run ends where the row
   ends, or where columns that are shown begin or end. */
typedef struct {
    Huffman *huffman;
    BitReader bits;
    const AcTable *table;
    JBLOCK *block;      /* NULL if the run is skipped */
    unsigned place;     /* of the block's last coefficient so far */
    int number;         /* of the block in its MCU */
    unsigned num_left;  /* MCUs of the run that have not ended */
    unsigned num_mcus;  /* of the run */
    int is_skipped;
} Strand;

/* Replace libjpeg-turbo's `decode_mcu`. Call it after `jpeg_start_decompress` and before rows are read or skipped;
   pixels left of column `left` and from column `right` of the scaled image on are not needed.

   Returns 0, and changes nothing of `info`, if the scan is of another kind, or if it is short and its tables are new.
   If something turns out to be wrong later, libjpeg's `error_exit` is called: then decode the file again without
   this. */
int take_over(Huffman *huffman, j_decompress_ptr info, JDIMENSION left, JDIMENSION right);

/* Keep the coefficients of the next photo, which is decoded several times: the later times need no Huffman decoding. A
   photo with more than MAX_KEPT_BYTES of them is decoded from its start each time. If one decode fails, so do all that
   follow it. `forget` frees them. */
void keep(Huffman *huffman);
void forget(Huffman *huffman);

/* As `take_over`, for a scale that is decoded in step with others: each reads rows of the photo while the other ones are
   at most a row of MCUs behind. Call it for each scale. `first_row` is the first row of the whole photo, at its full
   size, that any scale needs. */
int take_over_shared(
    Huffman *huffman, Reader *reader, int is_first, j_decompress_ptr info, JDIMENSION left, JDIMENSION right,
    int first_row);

/* Whether the scan can be decoded by strands, in turn with that of another photo. */
int has_strands(const Huffman *huffman);

/* Begin the next run. Until it ends, nothing else may use `huffman`. */
void begin_run(Strand *strand, Huffman *huffman);

/* Decode two runs until one of them ends or both do: `num_left` is 0 then. */
void take_two(Strand *one, Strand *other);

/* Decode the rest of a run. */
void take_rest(Strand *strand);

/* Note that the run has ended. Returns 0 if something is wrong with it. */
int end_run(Strand *strand);

/* The coefficients of an MCU that are kept for several scales. */
static inline JBLOCK *recent_mcu(const Huffman *huffman, unsigned row, unsigned column) {
    size_t number = (size_t)(row % RECENT_ROWS) * huffman->num_columns + column;
    return huffman->recent + number * (size_t)huffman->num_blocks;
}

/* Skip the rest of the scan, so that the starts of all rows are noted. Returns 0 if something is wrong with it. */
int skip_rest(Huffman *huffman);

/* What libjpeg-turbo calls instead of its own: decode the next MCU, unless `blocks` is NULL or it is not shown. */
boolean decode_mcu(j_decompress_ptr info, JBLOCKROW *blocks);

/* Raise a libjpeg error. Its message is never shown: libjpeg-turbo decodes the file again, and its messages count. */
_Noreturn void give_up(j_decompress_ptr info);

/* Decode the next MCU of the scan, or skip it if `blocks` is NULL. Returns 0 if something is wrong. */
int take_mcu(Huffman *huffman, JBLOCKROW *blocks);

/* As `decode_mcu`, for scales that are decoded in step. */
boolean decode_shared_mcu(j_decompress_ptr info, JBLOCKROW *blocks);

/* Whether no two codes overlap and no symbol exceeds `max_symbol`. libjpeg-turbo has refused other tables already; this
   makes sure that no table is written out of bounds. */
int is_legal(const JHUFF_TBL *table, int max_symbol);

/* Build a lookup table from a legal table, unless it is the same as for the last photo. An AC table of a new photo is
   built only if `at_once`, or when it comes a second time; until then the result is 0. */
void prepare_dc_table(Codes *codes, const JHUFF_TBL *from);
int prepare_ac_table(AcTable *table, const JHUFF_TBL *from, int at_once);

/* Whether a lookup table is that of a table in the file. */
int is_prepared(const Codes *codes, const JHUFF_TBL *from);

/* The code at the beginning of a 16-bit prefix, if it is longer than CODE_BITS. */
Code find_long_code(const Codes *codes, unsigned prefix);

static inline Code find_code(const Codes *codes, unsigned prefix) {
    Code code = codes->prefixes[prefix >> (MAX_CODE_BITS - CODE_BITS)];
    return code.bits != 0 ? code : find_long_code(codes, prefix);
}

/* Whether a few generated photos have the same pixels with this decoder as with libjpeg-turbo's. */
int huffman_agrees(void);

#endif

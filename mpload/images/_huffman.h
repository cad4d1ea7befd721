/* Huffman decoding of a JPEG's scan, in libjpeg-turbo's place.

   _huffman_tables.c  tables made from those in the file
   _huffman.c         the bits of a scan, read with these tables
   _huffman_test.c    whether all of it agrees with libjpeg-turbo

   Words: a *symbol* is what a Huffman code stands for. For the first coefficient of a block (DC) it is the size in bits
   of a difference. For the others (AC) it is a run of zeros and the size in bits of the value after them; two of these
   symbols are special: the end of the block, and a run of 16 zeros. The bits of the value follow the code. A *place* is a
   coefficient's number in zigzag order, 0 to 63. A *prefix* is the next few bits of the scan, whatever they mean. */

#ifndef MPLOAD_HUFFMAN_H
#define MPLOAD_HUFFMAN_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <jpeglib.h>

enum {
    MAX_CODE_BITS = 16,
    CODE_BITS = 9,      /* prefix in Codes: most codes are no longer */
    PAIR_BITS = 11,     /* prefix in AcTable.pairs */
    SKIP_BITS = 11,     /* prefix in AcTable.skips */
    MAX_SKIPPED_BITS = 18,  /* by one lookup there; the value of the last symbol may lie beyond the prefix */
    LAST_PLACE = 63,
    ENDS_BLOCK = 128,   /* added to an advance */
    ADVANCE_MASK = 127,
    NO_ADVANCE = 127    /* too far for any block: the table does not know this prefix */
};

typedef struct {
    uint8_t bits;       /* length of the code; 0: no code, or a longer one */
    uint8_t symbol;
} Code;

/* The codes of one table in the file. */
typedef struct {
    uint8_t counts[MAX_CODE_BITS + 1], symbols[256];    /* as the file gives them: [length], and in order of the codes */
    int is_filled;      /* what follows, and the tables that are made of it */
    uint32_t limits[MAX_CODE_BITS + 1];  /* [length] 16-bit prefixes below this begin with a code of at most that length */
    int offsets[MAX_CODE_BITS + 1];      /* [length] add to a code of that length: its place in `symbols` */
    Code prefixes[1 << CODE_BITS];
} Codes;

/* What a prefix says in full: one or two coefficients with their values, and whether the block ends after them.

   A prefix with one coefficient gives it twice, one that only ends the block gives a zero: the reader always stores two. */
typedef struct {
    int16_t values[2];
    uint8_t places[2];  /* relative to the last coefficient */
    uint8_t bits;       /* of the prefix that are used up */
    uint8_t advance;    /* how far the block must reach for all of this to lie in it, perhaps with ENDS_BLOCK */
} Pair;

/* As many symbols as a prefix holds; the bits of the last one's value may lie beyond the prefix. */
typedef struct {
    uint8_t bits, advance;
} Skip;

typedef struct {
    Codes codes;
    Pair pairs[1 << PAIR_BITS];
    Skip skips[2 << SKIP_BITS];  /* the second half; the first serves to make it */
} AcTable;

/* The bits of a scan, from its first byte to the next marker. */
typedef struct {
    uint64_t window;            /* the next bits, the first one on top */
    int count;                  /* how many of them may be used */
    int missing;                /* how many of these were made up, since the data has ended */
    const uint8_t *next, *end;  /* the bytes that are not in the window yet */
} BitReader;

typedef struct {
    const Codes *dc;
    const AcTable *ac;
    uint32_t *predictor;        /* the last DC coefficient of the component; its sums may overflow */
    int needs_ac;               /* not at 1/8 of the size, where a block is one pixel */
} BlockPlan;

typedef struct Huffman {
    BitReader bits;
    BlockPlan blocks[D_MAX_BLOCKS_IN_MCU];
    int num_blocks;                             /* in an MCU, which is what one call decodes */
    uint32_t predictors[MAX_COMPS_IN_SCAN];
    unsigned column, num_columns;               /* of the next MCU; in a row */
    unsigned first_shown, end_shown;            /* columns beside these are only skipped */
    unsigned restart_interval, until_restart;   /* in MCUs; an interval of 0: no restarts */
    int next_restart;                           /* number of the next marker, 0 to 7 */
    Codes dc_tables[NUM_HUFF_TBLS];             /* kept from photo to photo: */
    AcTable ac_tables[NUM_HUFF_TBLS];           /* most have the same tables as the one before */
} Huffman;

/* Take over from libjpeg-turbo after `jpeg_start_decompress`, before rows are read or skipped. Only the pixels from column
   `left` to column `right` of the (scaled) image will be used.

   Returns 0 where libjpeg-turbo goes on as before: the scan is not of the kind that is understood here, or it is short and
   its tables are new. What turns out not to be plain and whole later ends by libjpeg's `error_exit`: let libjpeg-turbo alone
   decode that file, from its start. */
int take_over(Huffman *huffman, j_decompress_ptr info, JDIMENSION left, JDIMENSION right);

/* Have a table for that of the file, which libjpeg-turbo must have checked: its `jpeg_start_decompress` refuses codes that
   overlap, and sizes over 15 for DC. A table that is there already is kept. A new one for AC is only noted, and 0 returned,
   unless it shall be made at once. */
void prepare_dc_table(Codes *codes, const JHUFF_TBL *from);
int prepare_ac_table(AcTable *table, const JHUFF_TBL *from, int at_once);

/* The code that a prefix of 16 bits begins with, where it is longer than CODE_BITS. */
Code find_long_code(const Codes *codes, unsigned prefix);

static inline Code find_code(const Codes *codes, unsigned prefix) {
    Code code = codes->prefixes[prefix >> (MAX_CODE_BITS - CODE_BITS)];
    return code.bits != 0 ? code : find_long_code(codes, prefix);
}

/* Whether made-up photos show the same pixels with and without this decoder. */
int huffman_agrees(void);

#endif

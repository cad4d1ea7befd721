/* Masks in PNG files with one channel: the numbers that a file stores for its pixels.

   _mask_png.c      decodes a file, as stored_values.py does
   _mask_nearest.c  finds which numbers a crop shows, as `Geometry.nearest` does, and writes them
   _mask_avx512.c   picks and writes them with AVX-512 instructions
   _masks.c         the Python module

   Every function returns 0 where it declines: files of other kinds, damaged files, and rows that are stored in an unusual
   way. The caller then decodes the mask in Python, which handles the case or reports what is wrong. */

#ifndef MPLOAD_MASK_H
#define MPLOAD_MASK_H

#include <stddef.h>
#include <stdint.h>

#include <libdeflate.h>

#include "_geometry.h"

enum { MAX_MASK_SIDE = 65535, MAX_ROWS_BYTES = 1 << 22 };
enum { GROUP = 32, WINDOW_BYTES = 128 };    /* for AVX-512: so many numbers are picked at a time, from so many bytes */
enum { LINE_BYTES = 64, LINE_NUMBERS = LINE_BYTES / (int)sizeof(uint64_t) };

/* As in `Limits`. */
typedef struct {
    int64_t max_bytes, max_pixels, max_pixels_per_byte;
} MaskLimits;

/* The numbers of a mask, and memory that is used again for the next one. */
typedef struct {
    struct libdeflate_decompressor *inflater;
    uint8_t *compressed, *rows;     /* all IDAT chunks; all rows, each with its filter's number before it */
    size_t compressed_held, rows_held;
    int height, width, bits;
    size_t row_bytes;               /* with the filter's number */
    int has_avx512;                 /* whether the processor has the instructions of _mask_avx512.c */
    int has_picks, is_streamed;     /* whether the rows of this result are picked, and written, with them */
    int32_t places[MAX_MASK_SIDE];  /* the columns that a row of the result shows */
    uint8_t picks[MAX_MASK_SIDE + GROUP];           /* the same, as places in the windows of their groups */
    uint8_t unpacked[MAX_MASK_SIDE + WINDOW_BYTES]; /* a row, a byte for each number */
    uint8_t picked[MAX_MASK_SIDE];                  /* a row of the result, a byte for each number */
} Mask;

Mask *new_mask(void);
void free_mask(Mask *mask);

/* Decode a PNG into `rows`. Rows are then unfiltered: of 8 bits a byte each, of 16 bits two, the higher first; smaller
   numbers lie side by side in a byte, the first in the highest bits. */
int decode_png(Mask *mask, const MaskLimits *limits, const uint8_t *data, size_t num_bytes);

/* Write what the geometry shows of a mask: out_height x out_width numbers of `item_bytes` each, 1, 2, 4 or 8; the sides are
   at most MAX_MASK_SIDE. `geometry` has the numbers that `geometry_of` in many.py explains. */
int show_mask(Mask *mask, const int64_t *geometry, int out_height, int out_width, int item_bytes, uint8_t *out);

int has_avx512(void);

/* Fill `picks` for the first `count` places. Returns 0 if the places of a group lie too far apart. */
int fill_picks(Mask *mask, int count);

/* Pick `count` bytes of a row, behind which WINDOW_BYTES more may be read. */
void pick_avx512(const Mask *mask, const uint8_t *row, int count, uint8_t *out);

/* Write `count` numbers, a multiple of LINE_NUMBERS, to whole cache lines. Other processes see them after `end_stream`. */
void stream_avx512(const uint8_t *bytes, int count, uint64_t *out);
void end_stream(void);

#endif

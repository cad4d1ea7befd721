/* Masks in PNG files with one channel: the numbers that a file stores for its pixels.

   _mask_png.c      decodes a file, as stored_values.py does
   _mask_nearest.c  finds which numbers a crop shows, as `Geometry.nearest` does, and writes them
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
} Mask;

Mask *new_mask(void);
void free_mask(Mask *mask);

/* Decode a PNG into `rows`. Rows are then unfiltered: of 8 bits a byte each, of 16 bits two, the higher first; smaller
   numbers lie side by side in a byte, the first in the highest bits. */
int decode_png(Mask *mask, const MaskLimits *limits, const uint8_t *data, size_t num_bytes);

/* Write what the geometry shows of a mask: out_height x out_width numbers of `item_bytes` each, 1, 2, 4 or 8.
   `geometry` has the numbers that `geometry_of` in many.py explains. `places` has room for out_width. */
int show_mask(
    const Mask *mask, const int64_t *geometry, int out_height, int out_width, int item_bytes, int32_t *places,
    uint8_t *out);

#endif

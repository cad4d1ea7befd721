/* The native decoder: its types, and the functions that its files call in each other.

   _jpeg.c      the Python module
   _decoder.c   decodes a view with libjpeg-turbo
   _scale.c     decodes the rows and columns that views of one scale need
   _together.c  decodes the views of a photo in one pass
   _huffman*.c  decode Huffman codes faster than libjpeg-turbo does; see _huffman.h
   _rows.c      keeps where rows begin, so that those above a crop need not be decoded; see _rows.h
   _resize*.c   turn decoded rows into rows of the result */

#ifndef MPLOAD_DECODER_H
#define MPLOAD_DECODER_H

#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>

#include <jpeglib.h>

#include "_huffman.h"

#ifndef LIBJPEG_TURBO_VERSION
#error "libjpeg-turbo is needed: other libjpegs cannot leave out rows and columns"
#endif

enum {
    NUM_SCALES = 4,         /* 1, 1/2, 1/4 and 1/8 */
    MAX_TAPS = 64,          /* source pixels for one pixel of the result, along one axis; more is declined */
    PADDING_BYTES = 256,    /* after each row, where code may read or write: more than MAX_TAPS pixels */
    MAX_SIDE = 65535,
    COLUMN_LANES = 4,       /* lanes of 16 bits for the 3 colours of a column; the last is empty */
    GROUP_COLUMNS = 4,      /* columns that are resized together */
    GROUP_LANES = GROUP_COLUMNS * COLUMN_LANES,
    WINDOW_BYTES = 16,
    NO_BYTE = 128,          /* in `picks`: the byte is 0 */
    WIDE_LANES = 32,        /* of one AVX-512 instruction, without empty ones */
    WIDE_WINDOW_BYTES = 64,
    ALIGNMENT = 64          /* of buffers: a cache line */
};

/* `StoredView` in Python, plus the size of the result, which Python gives by the array. */
typedef struct {
    int stored_height, stored_width;      /* size of the whole image; images of other sizes are declined */
    int denominator;                      /* the image is decoded at 1/denominator of its size: 1, 2, 4 or 8 */
    int top, left, height, width;         /* the box, in pixels of the image at that scale */
    int full_height, full_width;          /* size that the box is resized to */
    int out_top, out_left;                /* top left corner of the result in the resized box */
    int out_height, out_width;            /* size of the result */
    int mirror;                           /* swap left and right */
    int antialias;                        /* average all source pixels that a pixel of the result covers */
} View;

/* For each pixel of the result along one axis: the pixels of the box that it is mixed from, and their weights. */
typedef struct {
    int taps;           /* maximum number of source pixels */
    int first, end;     /* range of the box's pixels that the whole result needs */
    int *starts;        /* [count] first source pixel */
    int *ends;          /* [count] last source pixel plus 1 */
    uint16_t *weights;  /* [count][taps] in units of 1/65536; unused taps are 0 */
    size_t starts_bytes, ends_bytes, weights_bytes;
} Axis;

/* The instructions that rows are resized with. */
typedef enum { PLAIN, SSE2, NEON, AVX2, AVX512 } Simd;

/* Makes a view of the rows of a scaled image, which it is given one after the other. */
typedef struct {
    View view;
    uint8_t *out;           /* uint8 [out_height, out_width, 3] */
    Axis rows, columns;
    int next;               /* row of the box that is taken next */
    int num_made;           /* rows of the result */
    int is_copied;          /* whether the view is neither resized nor mirrored */
    size_t copied_from;     /* byte of a row where a copied row begins */
    uint16_t *ring;         /* rows.taps rows, resized horizontally, in units of 1/256 */
    Simd simd;
    int column_taps;        /* maximum number of source pixels for a column of the result */
    uint32_t *offsets;      /* [columns] byte offset of a column's first source pixel in a decoded row */
    int is_wide;            /* whether the next members are those for AVX-512, with the shapes after "or" */
    uint16_t *lanes;        /* [groups][column_taps][GROUP_COLUMNS][COLUMN_LANES] weights of the result's columns, or
                               [groups][column_taps][WIDE_LANES] */
    uint32_t *windows;      /* [pairs] the smaller offset of two columns, or [groups] of all in the group; this and
                               the next two members are not for SSE2 */
    uint8_t *picks;         /* [pairs][WINDOW_BYTES] for each byte of a pair's lanes, its place in the window, or
                               [groups][WIDE_WINDOW_BYTES] */
    int are_pairs_near;     /* whether the first pixels of each pair lie in one window; not if `is_wide` */
    size_t ring_bytes, lanes_bytes, offsets_bytes, windows_bytes, picks_bytes;
} Resizer;

typedef struct Decoder {
    struct jpeg_decompress_struct info;
    struct jpeg_error_mgr errors;
    jmp_buf on_error;
    char cause[JMSG_LENGTH_MAX];
    Resizer *resizers;      /* [num_resizers] of the views that are decoded together; room for more stays */
    size_t num_resizers, resizers_bytes;
    uint8_t *block;         /* BLOCK_ROWS decoded rows */
    size_t block_bytes, row_bytes;
    int next_row, end_row;  /* of the scaled image: the rows that remain to be decoded */
    int is_started;         /* whether the rows above were skipped */
    JDIMENSION first_column, end_column;    /* of the scaled image: the columns that are decoded */
    Simd simd;
    struct Huffman *huffman;    /* NULL if libjpeg-turbo decodes all Huffman codes */
    int is_huffman_used;        /* whether `huffman` decoded the last photo */
    struct Decoder *others[NUM_SCALES - 1]; /* for further scales of the photo; NULL before they are needed */
    struct Huffman *shared;     /* what decodes the Huffman codes of several scales, and how far this one has come */
    Reader reader;
    struct Decoder *beside;     /* for a second photo, which is decoded in turn; NULL before it is needed */
    struct Decoder *next;   /* in the module's list of idle decoders */
} Decoder;

/* All views of a photo, as far as they are decoded. */
typedef struct {
    Decoder *decoders[NUM_SCALES];      /* of the scales that the views need */
    int denominators[NUM_SCALES];
    int count;
    int is_ours;                        /* whether mpload decodes the Huffman codes */
    int strip_rows;                     /* height of a row of MCUs at full size */
    int num_rows;                       /* height of the photo */
    int next_row;                       /* first row of the strip that is shown next */
} Together;

/* _decoder.c */

/* Returns NULL if memory runs out. */
Decoder *new_decoder(int with_huffman);
void free_decoder(Decoder *decoder);

/* Whether all numbers are in range, as `decode_view` requires. */
int is_view(const View *view);

/* Write uint8 RGB [out_height, out_width, 3] to `out`. Returns 0 if the file is declined; `decoder->cause` then says
   why. */
int decode_view(Decoder *decoder, const uint8_t *data, size_t num_bytes, const View *view, uint8_t *out);

/* As `decode_view` for several views of one photo, with less work than for each alone. */
int decode_views(
    Decoder *decoder, const uint8_t *data, size_t num_bytes, const View *views, uint8_t *const *outs, size_t count);

/* As `decode_view` for several views of one photo, in one pass: rows are decoded once for each scale, and handed to all
   views of that scale. Also returns 0 if that is impossible, or would take longer than to decode each view alone. */
int decode_together(
    Decoder *decoder, const uint8_t *data, size_t num_bytes, const View *views, uint8_t *const *outs, size_t count);

/* `decode_together` in steps. Begin; then show one strip after the other, each a row of MCUs, until `is_shown`. If
   `strands`, rows of MCUs may be decoded before their strips are shown, if `is_ours`; see _huffman.h. A step that returns 0 has stopped
   the work, as `stop_together` does. */
int begin_together(
    Together *work, Decoder *decoder, int strands, const uint8_t *data, size_t num_bytes, const View *views,
    uint8_t *const *outs, size_t count
);
int show_strip(Together *work);
int is_shown(const Together *work);
int num_strips(const Together *work);   /* down to the last that a view shows */
void stop_together(Together *work);

/* As `decode_view`, faster with an entry of the photo; see _rows.h. If `entry` is not one, as with 0 bytes, an entry is
   made where that is possible, and `decoder->huffman->rows.entry_bytes` is not 0 afterwards. */
int decode_view_with_rows(
    Decoder *decoder, const uint8_t *data, size_t num_bytes, const View *view, const uint8_t *entry,
    size_t entry_bytes, uint8_t *out
);

/* Make `decode_view` return 0. */
_Noreturn void decline(Decoder *decoder, const char *cause);

/* Enlarge a buffer if needed. Buffers never shrink, so after the largest image nothing is allocated. */
void *grow(Decoder *decoder, void *buffer, size_t *held_bytes, size_t bytes);

#define GROW(decoder, buffer, bytes) ((buffer) = grow((decoder), (buffer), &buffer##_bytes, (bytes)))

/* _scale.c: call these in this order. They decline the photo by `decline`. */

/* Read the header, and choose the scale and the size of the view. Other views are added if they have the same ones. */
void open_scale(Decoder *decoder, const uint8_t *data, size_t num_bytes, const View *view);
void add_view(Decoder *decoder, const View *view, uint8_t *out);

/* Start to decode. Columns `first_column` to `end_column` of the scaled image will be. */
void start_scale(Decoder *decoder);

/* Decode the needed rows above `end_row` of the scaled image, and hand them to the views. */
void show_rows(Decoder *decoder, int end_row);

void close_scale(Decoder *decoder);

/* _resize.c */

/* Fill in the pixels and weights for `count` pixels, from `out_first` on, of a box of `length` pixels resized to `full`
   pixels. The filter is a triangle; what lies outside of the box has no weight. */
void fill_axis(Decoder *decoder, Axis *axis, int length, int full, int out_first, int count, int antialias);

/* Where the weights of a column of the result begin in `lanes`; those for its next tap are GROUP_LANES further. */
static inline size_t first_lane(int out, int column_taps) {
    return (size_t)(out / GROUP_COLUMNS) * (size_t)column_taps * GROUP_LANES
        + (size_t)(out % GROUP_COLUMNS) * COLUMN_LANES;
}

/* The weights of a pixel of the result. */
static inline const uint16_t *weights_of(const Axis *axis, int out) {
    return axis->weights + (size_t)out * (size_t)axis->taps;
}

/* Prepare the weights of `count` columns for `resize_row`. Decoded rows begin with column `origin` of the box. */
void fill_lanes(Decoder *decoder, Resizer *resizer, int count, int mirror, int origin);

/* Resize a decoded row horizontally to `count` pixels of 3 x 16 bits. */
void resize_row(const Resizer *resizer, const uint8_t *source, int count, uint16_t *result);

/* Mix rows of the ring, `stride` values apart, to the `count` bytes of row `out` of the result. */
void mix_rows(Resizer *resizer, int out, size_t stride, size_t count, uint8_t *restrict result);

/* Begin a view. Of the box, rows `rows.first` to `rows.end` and columns `columns.first` to `columns.end` are needed. */
void start_resizer(Decoder *decoder, Resizer *resizer, const View *view, uint8_t *out);

/* Prepare for rows that begin with this column of the scaled image. */
void set_first_column(Decoder *decoder, Resizer *resizer, int first_column);

/* Take the next needed row, and write all rows of the result that are then complete. */
void take_row(Resizer *resizer, const uint8_t *row);

void free_resizer(Resizer *resizer);

/* As `decode_view`, but of pixels that are decoded: uint8 RGB [stored_height, stored_width, 3], and PADDING_BYTES more,
   which may be read. `view->denominator` is ignored. */
int resize_view(Decoder *decoder, const uint8_t *pixels, const View *view, uint8_t *out);

/* _resize_simd.c */

extern const char *const simd_names[];  /* [Simd] */

/* The fastest instructions of this processor, but none that are faster than those that `at_most`, which may be NULL,
   names. */
Simd best_simd(const char *at_most);

/* `resize_row` unless `simd` is PLAIN, and a part of `mix_rows` if it is AVX2 or AVX512. */
void resize_row_simd(const Resizer *resizer, const uint8_t *source, int count, uint16_t *result);
void mix_rows_avx2(
    const uint16_t *const *rows, const uint16_t *weights, int taps, size_t count, uint8_t *result);

/* _resize_avx512.c */

/* The part of `fill_lanes` for AVX512. Returns 0 if columns lie too far apart: where a row shrinks to about half. */
int fill_wide_lanes(Decoder *decoder, Resizer *resizer, int count, int mirror);
void resize_row_avx512(const Resizer *resizer, const uint8_t *source, int count, uint16_t *result);

#endif

/* The native decoder: its types, and the functions that its files call in each other.

   _jpeg.c      the Python module
   _decoder.c   decodes the rows and columns that a view needs, with libjpeg-turbo
   _huffman*.c  decode Huffman codes faster than libjpeg-turbo does; see _huffman.h
   _resize.c    turns decoded rows into rows of the result */

#ifndef MPLOAD_DECODER_H
#define MPLOAD_DECODER_H

#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>

#include <jpeglib.h>

#ifndef LIBJPEG_TURBO_VERSION
#error "libjpeg-turbo is needed: other libjpegs cannot leave out rows and columns"
#endif

enum {
    MAX_TAPS = 64,      /* of one output pixel along one axis; more is declined */
    PADDING_BYTES = 256, /* that may be read, or written, after a row's end: more than MAX_TAPS pixels */
    MAX_SIDE = 65535
};

/* `StoredView` in Python, which has no size of the result: that of its array is taken. */
typedef struct {
    int stored_height, stored_width;      /* of the whole image: another size is declined */
    int denominator;                      /* the image is decoded at 1/denominator of its size: 1, 2, 4 or 8 */
    int top, left, height, width;         /* the box, in pixels of the image at that scale */
    int full_height, full_width;          /* what the box is resized to */
    int out_top, out_left;                /* where in that the result begins */
    int out_height, out_width;            /* of the result */
    int mirror, antialias;                /* left to right; a filter as wide as what a result's pixel covers */
} View;

/* For each pixel of the result along one axis: which pixels of the box it is mixed from, and how much of each. */
typedef struct {
    int taps;           /* the most that a pixel has */
    int first, end;     /* the pixels of the box that are needed at all */
    int *starts;        /* [count] the first one of each */
    int *ends;          /* [count] after the last one of each */
    uint16_t *weights;  /* [count][taps], of 65536; zeros follow the last */
    size_t starts_bytes, ends_bytes, weights_bytes;
} Axis;

typedef struct Decoder {
    struct jpeg_decompress_struct info;
    struct jpeg_error_mgr errors;
    jmp_buf on_error;
    char cause[JMSG_LENGTH_MAX];
    Axis rows, columns;
    uint8_t *block;         /* BLOCK_ROWS rows as libjpeg writes them */
    uint16_t *ring;         /* rows.taps rows, resized horizontally; 8 bits before the point and 8 after it */
    uint16_t *lanes;        /* [out_width][pairs][8]: the weights of columns as `resize_row` wants them */
    uint32_t *offsets;      /* [out_width]: the byte of a row of the block where a column's first pixel begins */
    size_t block_bytes, ring_bytes, lanes_bytes, offsets_bytes;
    struct Huffman *huffman;    /* NULL if libjpeg-turbo decodes all Huffman codes */
    int is_huffman_used;        /* whether `huffman` decoded the last photo */
    struct Decoder *next;   /* in the list of those at rest */
} Decoder;

/* _decoder.c */

/* Returns NULL if memory runs out. */
Decoder *new_decoder(int with_huffman);
void free_decoder(Decoder *decoder);

/* Whether all numbers are in range, as `decode_view` requires. */
int is_view(const View *view);

/* Write uint8 RGB [out_height, out_width, 3]. Returns 1, or 0 where it is declined; `decoder->cause` then says why. */
int decode_view(Decoder *decoder, const uint8_t *data, size_t num_bytes, const View *view, uint8_t *out);

/* Make `decode_view` return 0. */
_Noreturn void decline(Decoder *decoder, const char *cause);

/* Buffers grow and are kept: after the largest image nothing is allocated here. */
void *grow(Decoder *decoder, void *buffer, size_t *held_bytes, size_t bytes);

#define GROW(decoder, buffer, bytes) ((buffer) = grow((decoder), (buffer), &buffer##_bytes, (bytes)))

/* _resize.c */

/* Pixel centres lie at halves; a triangle of half-width `support` is laid over them and cut off at the box's edges. */
void fill_axis(Decoder *decoder, Axis *axis, int length, int full, int out_first, int count, int antialias);

/* Two pixels of a row are taken at a time, six bytes of a load of eight. A row begins with column `origin` of the
   box. */
void fill_lanes(Decoder *decoder, int count, int mirror, int origin);

/* Resize a row of the source horizontally to `count` pixels of 3 x 16 bits. */
void resize_row(const Decoder *decoder, const uint8_t *source, int count, uint16_t *result);

/* Mix rows of the ring, which are `stride` apart, to the `count` bytes of row `out` of the result. */
void mix_rows(Decoder *decoder, int out, size_t stride, size_t count, uint8_t *restrict result);

#endif

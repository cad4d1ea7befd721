/* Decode a PNG with one channel: see _mask.h. */

#include <stdlib.h>
#include <string.h>

#include "_mask.h"

enum { ALWAYS_PLAUSIBLE_PIXELS = 1 << 24, GRAY = 0, PALETTE = 3, MAX_WINDOW = 1 << 15 };
enum { NONE, SUB, UP, AVERAGE, PAETH };

static const uint8_t signature[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};

static uint32_t load(const uint8_t *bytes) {
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

Mask *new_mask(void) {
    Mask *mask = malloc(sizeof *mask);
    if (mask == NULL || (mask->inflater = libdeflate_alloc_decompressor()) == NULL) {
        free(mask);
        return NULL;
    }
    mask->compressed = mask->rows = NULL;
    mask->compressed_held = mask->rows_held = 0;
    mask->has_avx512 = has_avx512();
    return mask;
}

void free_mask(Mask *mask) {
    libdeflate_free_decompressor(mask->inflater);
    free(mask->compressed);
    free(mask->rows);
    free(mask);
}

static int reserve(uint8_t **buffer, size_t *held_bytes, size_t num_bytes) {
    if (num_bytes > *held_bytes) {
        uint8_t *larger = realloc(*buffer, num_bytes);
        if (larger == NULL) {
            return 0;
        }
        *buffer = larger;
        *held_bytes = num_bytes;
    }
    return 1;
}

/* `Limits.check_bytes` and `Limits.check_size`. */
static int is_within_limits(const MaskLimits *limits, int64_t num_pixels, int64_t num_bytes) {
    return num_bytes <= limits->max_bytes && num_pixels <= limits->max_pixels
        && (num_pixels <= ALWAYS_PLAUSIBLE_PIXELS || num_pixels / num_bytes < limits->max_pixels_per_byte);
}

/* Read the header, whose 13 bytes begin at `fields`. */
static int read_fields(Mask *mask, const MaskLimits *limits, const uint8_t *fields, size_t num_bytes) {
    uint32_t width = load(fields), height = load(fields + 4);
    int bits = fields[8], color = fields[9], is_plain = fields[10] == 0 && fields[11] == 0 && fields[12] == 0;
    int is_small = bits == 1 || bits == 2 || bits == 4 || bits == 8;
    if (height < 1 || height > MAX_MASK_SIDE || width < 1 || width > MAX_MASK_SIDE || !is_plain
        || !((color == GRAY && (is_small || bits == 16)) || (color == PALETTE && is_small))
        || !is_within_limits(limits, (int64_t)height * width, (int64_t)num_bytes)) {
        return 0;
    }
    mask->height = (int)height;
    mask->width = (int)width;
    mask->bits = bits;
    mask->row_bytes = 1 + ((size_t)width * (size_t)bits + 7) / 8;
    return mask->row_bytes * height <= MAX_ROWS_BYTES;
}

/* Join the IDAT chunks. Chunks of other kinds are left out, but one that turns the image is declined. */
static int join_chunks(Mask *mask, const MaskLimits *limits, const uint8_t *data, size_t num_bytes, size_t *joined) {
    size_t at = sizeof signature;
    *joined = 0;
    for (int is_first = 1;; is_first = 0) {
        if (num_bytes - at < 12 || load(data + at) > num_bytes - at - 12) {
            return 0;
        }
        size_t length = load(data + at);
        const uint8_t *kind = data + at + 4, *content = kind + 4;
        int is_header = memcmp(kind, "IHDR", 4) == 0, is_data = memcmp(kind, "IDAT", 4) == 0;
        int is_end = memcmp(kind, "IEND", 4) == 0;
        if (is_header != is_first || (is_header && length != 13) || (is_end && length != 0)
            || memcmp(kind, "eXIf", 4) == 0) {
            return 0;
        }
        if ((is_header || is_data || is_end) && libdeflate_crc32(0, kind, length + 4) != load(content + length)) {
            return 0;
        }
        if (is_header && !read_fields(mask, limits, content, num_bytes)) {
            return 0;
        }
        if (is_data) {
            memcpy(mask->compressed + *joined, content, length);  /* which has room for the whole file */
            *joined += length;
        }
        if (is_end) {
            return 1;
        }
        at += length + 12;
    }
}

static uint8_t paeth(int left, int up, int corner) {
    int to_left = abs(up - corner), to_up = abs(left - corner), to_corner = abs(left + up - 2 * corner);
    return (uint8_t)(to_left <= to_up && to_left <= to_corner ? left : to_up <= to_corner ? up : corner);
}

/* Undo the filter of a row, of `count` bytes; `above` is the row above it, `step` the bytes of a pixel. */
static int unfilter(int filter, uint8_t *row, const uint8_t *above, size_t count, size_t step) {
    size_t first = step < count ? step : count;
    switch (filter) {
    case NONE:
        return 1;
    case SUB:
        for (size_t at = step; at < count; at++) {
            row[at] = (uint8_t)(row[at] + row[at - step]);
        }
        return 1;
    case UP:
        for (size_t at = 0; at < count; at++) {
            row[at] = (uint8_t)(row[at] + above[at]);
        }
        return 1;
    case AVERAGE:
        for (size_t at = 0; at < first; at++) {
            row[at] = (uint8_t)(row[at] + above[at] / 2);
        }
        for (size_t at = step; at < count; at++) {
            row[at] = (uint8_t)(row[at] + (row[at - step] + above[at]) / 2);
        }
        return 1;
    case PAETH:
        for (size_t at = 0; at < first; at++) {
            row[at] = (uint8_t)(row[at] + above[at]);
        }
        for (size_t at = step; at < count; at++) {
            row[at] = (uint8_t)(row[at] + paeth(row[at - step], above[at], above[at - step]));
        }
        return 1;
    default:
        return 0;
    }
}

/* The first row is unfiltered as if a row of zeros were above it. */
static int unfilter_first(int filter, uint8_t *row, size_t count, size_t step) {
    if (filter == UP) {
        return 1;
    }
    for (size_t at = step; filter == AVERAGE && at < count; at++) {
        row[at] = (uint8_t)(row[at] + row[at - step] / 2);
    }
    return filter == AVERAGE || unfilter(filter == PAETH ? SUB : filter, row, NULL, count, step);
}

int decode_png(Mask *mask, const MaskLimits *limits, const uint8_t *data, size_t num_bytes) {
    size_t joined, used, made;
    if (num_bytes < sizeof signature || memcmp(data, signature, sizeof signature) != 0
        || !reserve(&mask->compressed, &mask->compressed_held, num_bytes)
        || !join_chunks(mask, limits, data, num_bytes, &joined)) {
        return 0;
    }
    size_t rows_bytes = mask->row_bytes * (size_t)mask->height;
    if (!reserve(&mask->rows, &mask->rows_held, rows_bytes + WINDOW_BYTES)
        || libdeflate_zlib_decompress_ex(
               mask->inflater, mask->compressed, joined, mask->rows, rows_bytes, &used, &made) != LIBDEFLATE_SUCCESS
        || used != joined || made != rows_bytes) {
        return 0;
    }
    size_t window = (size_t)1 << ((mask->compressed[0] >> 4) + 8), step = mask->bits == 16 ? 2 : 1;
    if (window < MAX_WINDOW && window < rows_bytes) {
        return 0;  /* libpng refuses distances that exceed the window */
    }
    uint8_t *row = mask->rows;
    int is_made = unfilter_first(row[0], row + 1, mask->row_bytes - 1, step);
    for (int y = 1; y < mask->height && is_made; y++) {
        const uint8_t *above = row + 1;
        row += mask->row_bytes;
        is_made = row[0] == NONE || unfilter(row[0], row + 1, above, mask->row_bytes - 1, step);
    }
    return is_made;
}

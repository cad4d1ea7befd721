/* Write what a geometry shows of a mask: see _mask.h. */

#include <string.h>

#include "_mask.h"

/* Whether a part lies in something of length `side`. */
static int is_inside(int64_t start, int64_t length, int64_t side) {
    return start >= 0 && length > 0 && side <= MAX_MASK_SIDE && start <= side && length <= side - start;
}

static int is_geometry(const int64_t *numbers, int out_height, int out_width) {
    return is_inside(numbers[BOX_TOP], numbers[BOX_HEIGHT], numbers[IMAGE_HEIGHT])
        && is_inside(numbers[BOX_LEFT], numbers[BOX_WIDTH], numbers[IMAGE_WIDTH])
        && is_inside(numbers[SHOWN_TOP], numbers[SHOWN_HEIGHT], numbers[FULL_HEIGHT])
        && is_inside(numbers[SHOWN_LEFT], numbers[SHOWN_WIDTH], numbers[FULL_WIDTH])
        && numbers[SHOWN_HEIGHT] == out_height && numbers[SHOWN_WIDTH] == out_width;
}

/* `check_shape` in mask.py: whether a mask of this size can belong to the image. */
static int is_shape(int64_t height, int64_t width, int64_t image_height, int64_t image_width) {
    int64_t difference = height * image_width - width * image_height;
    int64_t larger = height * width >= image_height * image_width ? height + width : image_height + image_width;
    int is_turned = height == image_width && width == image_height && height != width;
    return !is_turned && difference < larger && -difference < larger;
}

/* `_nearest`, for one place after the other. All numbers are below 2^16, so that nothing overflows. */
typedef struct {
    int64_t place, rest;            /* the quotient, and the remainder */
    int64_t more, more_rest, divisor;
} Nearest;

static Nearest nearest_from(int64_t first, int64_t start, int64_t length, int64_t full, int64_t image_side, int64_t side) {
    int64_t divisor = 2 * full * image_side, step = 2 * length * side;
    int64_t dividend = (2 * first + 1) * length * side + 2 * full * start * side;
    return (Nearest){dividend / divisor, dividend % divisor, step / divisor, step % divisor, divisor};
}

static int32_t take_nearest(Nearest *nearest) {
    int64_t place = nearest->place;
    nearest->place += nearest->more;
    nearest->rest += nearest->more_rest;
    if (nearest->rest >= nearest->divisor) {
        nearest->rest -= nearest->divisor;
        nearest->place++;
    }
    return (int32_t)place;
}

/* Write the numbers as items of TYPE. */
#define WRITE(TYPE, NUMBER)                                                  \
    do {                                                                     \
        TYPE *to = (TYPE *)out;                                              \
        for (int x = 0; x < count; x++) {                                    \
            to[x] = (TYPE)(NUMBER);                                          \
        }                                                                    \
    } while (0)
#define WRITE_TYPES(NUMBER)                                                  \
    do {                                                                     \
        switch (item_bytes) {                                                \
        case 1: WRITE(uint8_t, NUMBER); break;                               \
        case 2: WRITE(uint16_t, NUMBER); break;                              \
        case 4: WRITE(uint32_t, NUMBER); break;                              \
        default: WRITE(uint64_t, NUMBER); break;                             \
        }                                                                    \
    } while (0)

static void pick_words(const uint8_t *row, const int32_t *places, int count, int item_bytes, uint8_t *out) {
    WRITE_TYPES(row[2 * places[x]] << 8 | row[2 * places[x] + 1]);
}

static void pick_bytes(const uint8_t *row, const int32_t *places, int count, uint8_t *out) {
    for (int x = 0; x < count; x++) {
        out[x] = row[places[x]];
    }
}

static void unpack(const uint8_t *row, int count, int bits, uint8_t *out) {
    int ones = (1 << bits) - 1;
    for (int x = 0, at = 0; x < count; x++, at += bits) {
        out[x] = (uint8_t)(row[at >> 3] >> (8 - bits - (at & 7)) & ones);
    }
}

static void write_row(const Mask *mask, const uint8_t *bytes, int count, int item_bytes, uint8_t *out) {
    if (mask->is_streamed) {
        stream_avx512(bytes, count, (uint64_t *)out);
    } else if (bytes != out) {
        WRITE_TYPES(bytes[x]);
    }
}

static void show_row(Mask *mask, const uint8_t *row, int count, int item_bytes, uint8_t *out) {
    if (mask->bits == 16) {
        pick_words(row, mask->places, count, item_bytes, out);
        return;
    }
    if (mask->bits < 8) {
        unpack(row, mask->width, mask->bits, mask->unpacked);
        row = mask->unpacked;
    }
    uint8_t *bytes = item_bytes == 1 ? out : mask->picked;
    if (mask->has_picks) {
        pick_avx512(mask, row, count, bytes);
    } else {
        pick_bytes(row, mask->places, count, bytes);
    }
    write_row(mask, bytes, count, item_bytes, out);
}

/* A row that equals the one above it, which was made just before. */
static void repeat_row(const Mask *mask, int count, int item_bytes, uint8_t *out) {
    size_t num_bytes = (size_t)count * (size_t)item_bytes;
    if (mask->is_streamed) {
        write_row(mask, mask->picked, count, item_bytes, out);
    } else {
        memcpy(out, out - num_bytes, num_bytes);
    }
}

int show_mask(Mask *mask, const int64_t *geometry, int out_height, int out_width, int item_bytes, uint8_t *out) {
    if (!is_geometry(geometry, out_height, out_width)
        || !is_shape(mask->height, mask->width, geometry[IMAGE_HEIGHT], geometry[IMAGE_WIDTH])) {
        return 0;
    }
    Nearest column = nearest_from(
        geometry[SHOWN_LEFT], geometry[BOX_LEFT], geometry[BOX_WIDTH], geometry[FULL_WIDTH], geometry[IMAGE_WIDTH],
        mask->width);
    for (int x = 0; x < out_width; x++) {
        mask->places[geometry[IS_MIRRORED] ? out_width - 1 - x : x] = take_nearest(&column);
    }
    mask->has_picks = mask->has_avx512 && mask->bits <= 8 && fill_picks(mask, out_width);
    mask->is_streamed = mask->has_picks && item_bytes == sizeof(uint64_t) && out_width % LINE_NUMBERS == 0
        && (uintptr_t)out % LINE_BYTES == 0;
    Nearest row = nearest_from(
        geometry[SHOWN_TOP], geometry[BOX_TOP], geometry[BOX_HEIGHT], geometry[FULL_HEIGHT], geometry[IMAGE_HEIGHT],
        mask->height);
    for (int y = 0, latest = -1; y < out_height; y++, out += (size_t)out_width * (size_t)item_bytes) {
        int shown = take_nearest(&row);
        if (shown == latest) {
            repeat_row(mask, out_width, item_bytes, out);
        } else {
            show_row(mask, mask->rows + (size_t)shown * mask->row_bytes + 1, out_width, item_bytes, out);
        }
        latest = shown;
    }
    if (mask->is_streamed) {
        end_stream();
    }
    return 1;
}

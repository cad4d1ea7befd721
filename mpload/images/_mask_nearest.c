/* Write what a geometry shows of a mask: see _mask.h. */

#include <string.h>

#include "_mask.h"

/* `_nearest`, for one of the pixels; all numbers are below 2^16, so that nothing overflows. */
static int64_t nearest(int64_t place, int64_t start, int64_t length, int64_t full, int64_t image_side, int64_t side) {
    return ((2 * place + 1) * length * side + 2 * full * start * side) / (2 * full * image_side);
}

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

/* Pick the numbers of a row at `places`, as items of TYPE. */
#define PICK(TYPE, NUMBER)                                                   \
    do {                                                                     \
        TYPE *to = (TYPE *)out;                                              \
        for (int x = 0; x < count; x++) {                                    \
            size_t place = (size_t)places[x];                                \
            to[x] = (TYPE)(NUMBER);                                          \
        }                                                                    \
    } while (0)
#define PICK_TYPES(NUMBER)                                                   \
    do {                                                                     \
        switch (item_bytes) {                                                \
        case 1: PICK(uint8_t, NUMBER); break;                                \
        case 2: PICK(uint16_t, NUMBER); break;                               \
        case 4: PICK(uint32_t, NUMBER); break;                               \
        default: PICK(uint64_t, NUMBER); break;                              \
        }                                                                    \
    } while (0)

static void pick(const uint8_t *row, int bits, const int32_t *places, int count, int item_bytes, uint8_t *out) {
    if (bits == 8) {
        PICK_TYPES(row[place]);
    } else if (bits == 16) {
        PICK_TYPES(row[2 * place] << 8 | row[2 * place + 1]);
    } else {
        size_t per_byte = 8 / (size_t)bits;
        int ones = (1 << bits) - 1;
        PICK_TYPES(row[place / per_byte] >> (8 - bits - bits * (int)(place % per_byte)) & ones);
    }
}

int show_mask(
    const Mask *mask, const int64_t *geometry, int out_height, int out_width, int item_bytes, int32_t *places,
    uint8_t *out
) {
    if (!is_geometry(geometry, out_height, out_width)
        || !is_shape(mask->height, mask->width, geometry[IMAGE_HEIGHT], geometry[IMAGE_WIDTH])) {
        return 0;
    }
    for (int x = 0; x < out_width; x++) {
        int64_t place = nearest(
            geometry[SHOWN_LEFT] + x, geometry[BOX_LEFT], geometry[BOX_WIDTH], geometry[FULL_WIDTH], geometry[IMAGE_WIDTH],
            mask->width);
        places[geometry[IS_MIRRORED] ? out_width - 1 - x : x] = (int32_t)place;
    }
    size_t out_bytes = (size_t)out_width * (size_t)item_bytes;
    int64_t latest = -1;
    for (int y = 0; y < out_height; y++, out += out_bytes) {
        int64_t row = nearest(
            geometry[SHOWN_TOP] + y, geometry[BOX_TOP], geometry[BOX_HEIGHT], geometry[FULL_HEIGHT], geometry[IMAGE_HEIGHT],
            mask->height);
        if (row == latest) {
            memcpy(out, out - out_bytes, out_bytes);
        } else {
            pick(mask->rows + (size_t)row * mask->row_bytes + 1, mask->bits, places, out_width, item_bytes, out);
        }
        latest = row;
    }
    return 1;
}

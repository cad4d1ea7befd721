/* Move boxes into a crop: see _scan.h. Every operation has the order that it has in Python, so that results are equal to
   the last bit. (The compiler must not fuse operations: setup.py passes -ffp-contract=off.) */

#include "_scan.h"

/* Along x or y: a point of the image is multiplied with `scale`, then `shift` is added. The result shows the image from
   `low` to `high`. */
typedef struct {
    double scale, shift, low, high;
} Axis;

static double least(double a, double b) {
    return b < a ? b : a;
}

static double greatest(double a, double b) {
    return b > a ? b : a;
}

/* `Geometry.points` and `Geometry.shown_area`. */
static int fill_axis(Axis *axis, int64_t start, int64_t length, int64_t full, int64_t shown, int64_t side, int mirror) {
    if (start < 0 || start > INT32_MAX || length <= 0 || length > INT32_MAX || full <= 0) {
        return 0;
    }
    axis->scale = (double)full / (double)length;
    axis->shift = (double)-start * axis->scale - (double)shown;
    if (mirror) {
        axis->scale = -axis->scale;
        axis->shift = (double)side - axis->shift;
    }
    double one = (double)start * axis->scale + axis->shift;
    double other = (double)(start + length) * axis->scale + axis->shift;
    axis->low = greatest(0, least(least(one, other), (double)side));
    axis->high = greatest(0, least(greatest(one, other), (double)side));
    return 1;
}

/* The limits of mpload.index.label_lines, which leave room for rounding. */
static const double MIN_FRACTION = -0.01, MAX_FRACTION = 1.01;

/* Turn a box into left, top, right and bottom in pixels of the image. Return 0 for a negative width or height, and for
   one that is no fraction where it must be. */
static int make_corners(const Clip *clip, const int64_t *geometry, double *box) {
    for (int axis = 0; axis < 2; axis++) {
        double *first = &box[axis], *second = &box[axis + 2];
        if (clip->format == YOLO && (*first < MIN_FRACTION || *first > MAX_FRACTION || *second > MAX_FRACTION)) {
            return 0;
        }
        if (clip->format == CXCYWH || clip->format == YOLO) {
            *first = *first - *second / 2;
        }
        if (clip->format != XYXY) {
            *second = *first + *second;
        }
        if (*second < *first) {
            return 0;
        }
        if (clip->format == YOLO) {
            double side = (double)geometry[axis == 0 ? IMAGE_WIDTH : IMAGE_HEIGHT];
            *first *= side;
            *second *= side;
        }
    }
    return 1;
}

/* Write what is visible of a box, and return whether that is enough. */
static int clip_box(const Clip *clip, const Axis axes[2], const double *box, float *shown) {
    double whole = 1, visible = 1, shorter = 0;
    for (int number = 0; number < 2; number++) {
        const Axis *axis = &axes[number];
        double one = box[number] * axis->scale + axis->shift, other = box[number + 2] * axis->scale + axis->shift;
        double start = least(one, other), end = greatest(one, other);
        double first = least(greatest(start, axis->low), axis->high), last = least(greatest(end, axis->low), axis->high);
        shown[number] = (float)first;
        shown[number + 2] = (float)last;
        shorter = number == 0 ? last - first : least(shorter, last - first);
        whole *= end - start;
        visible *= last - first;
    }
    return shorter > 0 && shorter >= clip->min_side && (clip->min_visible <= 0 || visible >= clip->min_visible * whole);
}

static void write_number(const Wanted *wanted, int value, int64_t place, double number) {
    uint8_t *column = wanted->columns + (size_t)(value * wanted->max_objects) * COLUMN_BYTES;
    if (wanted->values[value].is_int) {
        ((int64_t *)(void *)column)[place] = (int64_t)number;
    } else {
        ((float *)(void *)column)[place] = (float)number;
    }
}

int64_t clip_boxes(
    const Clip *clip, const Wanted *wanted, const int64_t *geometry, int64_t first, int64_t count, float *shown
) {
    Axis axes[2] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
    int64_t kept = first;
    int is_fine = fill_axis(
        &axes[0], geometry[BOX_LEFT], geometry[BOX_WIDTH], geometry[FULL_WIDTH], geometry[SHOWN_LEFT],
        geometry[SHOWN_WIDTH], geometry[IS_MIRRORED] != 0);
    is_fine &= fill_axis(
        &axes[1], geometry[BOX_TOP], geometry[BOX_HEIGHT], geometry[FULL_HEIGHT], geometry[SHOWN_TOP],
        geometry[SHOWN_HEIGHT], 0);
    if (!is_fine) {
        return -1;
    }
    for (int64_t object = first; object < first + count; object++) {
        double *box = wanted->boxes + BOX_NUMBERS * object;
        if (!make_corners(clip, geometry, box)) {
            return -1;
        }
        if (clip_box(clip, axes, box, shown + BOX_NUMBERS * kept)) {
            for (int value = 0; value < wanted->num_values; value++) {
                write_number(wanted, value, kept, wanted->numbers[wanted->num_values * object + value]);
            }
            kept++;
        }
    }
    return kept - first;
}

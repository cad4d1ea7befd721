/* What a crop shows. The functions and their numbers are those of decoders.py, resize.py and jpeg.py; results are equal
   to the last bit, so every operation has Python's order, and `rint` rounds half to even, as Python's `round` does.
   (The compiler must not fuse operations: setup.py passes -ffp-contract=off.) */

#include <math.h>

#include "_photos.h"

static int clip(int value, int low, int high) {
    return value < low ? low : value > high ? high : value;
}

static int least(int a, int b) {
    return a < b ? a : b;
}

/* `random_crop_box`. */
static int random_box(const RandomCrop *crop, int height, int width, const double *draws, Box *box) {
    double aspect = (double)width / height, span = crop->scale[1] - crop->scale[0];
    double log_span = crop->log_ratio[1] - crop->log_ratio[0];
    for (int attempt = 0; attempt < 2 * NUM_TRIES; attempt += 2) {
        double area = crop->scale[0] + span * draws[attempt];
        double ratio = exp(crop->log_ratio[0] + log_span * draws[attempt + 1]);
        if (!(ratio > 0 && isfinite(ratio))) {
            return 0;  /* Python raises an error */
        }
        double crop_width = sqrt(area * ratio / aspect), crop_height = sqrt(area / ratio * aspect);
        if (crop_width <= 1 && crop_height <= 1) {
            box->height = clip((int)rint(crop_height * height), 1, height);
            box->width = clip((int)rint(crop_width * width), 1, width);
            box->top = (int)(draws[2 * NUM_TRIES] * (height - box->height + 1));
            box->left = (int)(draws[2 * NUM_TRIES + 1] * (width - box->width + 1));
            return 1;
        }
    }
    box->height = height;
    box->width = width;
    if (aspect < crop->ratio[0]) {
        box->height = (int)fmax(1, fmin(height, rint(width / crop->ratio[0])));
    } else if (aspect > crop->ratio[1]) {
        box->width = (int)fmax(1, fmin(width, rint(height * crop->ratio[1])));
    }
    box->top = (height - box->height) / 2;
    box->left = (width - box->width) / 2;
    return 1;
}

int random_shown(const RandomCrop *crop, int height, int width, const double *draws, const int size[2], Shown *shown) {
    if (!random_box(crop, height, width, draws, &shown->box)) {
        return 0;
    }
    shown->full_height = size[0];
    shown->full_width = size[1];
    shown->window = (Box){0, 0, size[0], size[1]};
    shown->mirror = draws[NUM_DRAWS - 1] < crop->flip;
    return 1;
}

/* `_middle_strip`. */
static Box middle_strip(int height, int width) {
    int rows = height > 4 * width ? (height - 4 * width) / 2 : 0;
    int columns = width > 4 * height ? (width - 4 * height) / 2 : 0;
    return (Box){rows, columns, height - 2 * rows, width - 2 * columns};
}

int center_shown(int short_side, int height, int width, const int size[2], Shown *shown) {
    if (short_side < 1) {
        return 0;
    }
    Box box = middle_strip(height, width);
    int64_t longer = box.height < box.width ? (int64_t)short_side * box.width / box.height
                                            : (int64_t)short_side * box.height / box.width;
    if (longer > MAX_SIDE) {
        return 0;
    }
    shown->box = box;
    shown->full_height = box.height < box.width ? short_side : (int)longer;
    shown->full_width = box.height < box.width ? (int)longer : short_side;
    shown->window = (Box){(int)rint((shown->full_height - size[0]) / 2.0),
                          (int)rint((shown->full_width - size[1]) / 2.0), size[0], size[1]};
    shown->mirror = 0;
    return 1;
}

/* `_stored_box`. */
static Box stored_box(Box box, int orientation, int height, int width) {
    if (orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8) {
        box.top = height - box.top - box.height;
    }
    if (orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7) {
        box.left = width - box.left - box.width;
    }
    return orientation >= 5 ? (Box){box.left, box.top, box.width, box.height} : box;
}

/* `_scaled_span`. */
static void scale_span(int *start, int *length, int denominator, int side) {
    int end = (side + denominator - 1) / denominator;
    *length = clip((int)rint((double)*length / denominator), 1, end);
    *start = least((int)rint((double)*start / denominator), end - *length);
}

void stored_view(const Header *header, const Shown *shown, View *view) {
    int is_turned = header->orientation >= 5;
    int height = is_turned ? header->width : header->height, width = is_turned ? header->height : header->width;
    int spare = least(shown->box.height / shown->full_height, shown->box.width / shown->full_width);
    Box box = stored_box(shown->box, header->orientation, height, width);
    Box window = stored_box(shown->window, header->orientation, shown->full_height, shown->full_width);
    view->stored_height = header->height;
    view->stored_width = header->width;
    view->denominator = spare >= 8 ? 8 : spare >= 4 ? 4 : spare >= 2 ? 2 : 1;
    if (view->denominator > 1) {
        scale_span(&box.top, &box.height, view->denominator, header->height);
        scale_span(&box.left, &box.width, view->denominator, header->width);
    }
    view->top = box.top;
    view->left = box.left;
    view->height = box.height;
    view->width = box.width;
    view->full_height = is_turned ? shown->full_width : shown->full_height;
    view->full_width = is_turned ? shown->full_height : shown->full_width;
    view->out_top = window.top;
    view->out_left = window.left;
    view->out_height = window.height;
    view->out_width = window.width;
    view->mirror = header->orientation == 1 && shown->mirror;
}

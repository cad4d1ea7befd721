/* Damaged masks and lists of objects through the native code that reads them: no error of memory, and nothing that lies
   outside of the crop.

       FILES="mpload/images/_mask_[anp]*.c mpload/samples/_scan.c mpload/samples/_clip.c"
       gcc -g -O1 -fsanitize=address,undefined tests/support/fuzz_values.c $FILES -ldeflate -lm -o fuzz
       ./fuzz SECONDS RANDOM_SEED SEED...

   Each seed is read as a PNG and as JSON. Most damaged PNGs get the checksums of their new content. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../mpload/images/_mask.h"
#include "../../mpload/samples/_scan.h"

enum { MAX_BYTES = 1 << 16, MAX_SIDE = 300 };

static const char LETTERS[] = "[]{}\",:0123456789.eE+- \n\\utrfalsn";
static long num_masks, num_lists, num_boxes;

static int64_t any(int64_t limit) {
    return rand() % limit;
}

/* Memory of exactly this size, so that a byte too many is seen. It begins at a cache line, as arrays of slots do. */
static void *allocate(size_t num_bytes) {
    void *bytes;
    if (posix_memalign(&bytes, 64, num_bytes + !num_bytes) != 0) {
        abort();
    }
    return bytes;
}

/* A crop of an image, mostly as it should be. */
static void make_geometry(int64_t *geometry, int64_t height, int64_t width) {
    int64_t *g = geometry;
    g[IMAGE_HEIGHT] = height;
    g[IMAGE_WIDTH] = width;
    for (int axis = 0; axis < 2; axis++) {
        g[BOX_HEIGHT + axis] = 1 + any(g[IMAGE_HEIGHT + axis]);
        g[BOX_TOP + axis] = any(g[IMAGE_HEIGHT + axis] - g[BOX_HEIGHT + axis] + 1);
        g[FULL_HEIGHT + axis] = 1 + any(MAX_SIDE);
        g[SHOWN_HEIGHT + axis] = 1 + any(g[FULL_HEIGHT + axis]);
        g[SHOWN_TOP + axis] = any(g[FULL_HEIGHT + axis] - g[SHOWN_HEIGHT + axis] + 1);
    }
    g[IS_MIRRORED] = any(2);
    if (rand() % 8 == 0) {
        static const int64_t odd[] = {INT64_MIN, -1, 0, 1, MAX_MASK_SIDE, INT32_MAX, INT64_MAX};
        g[any(NUM_GEOMETRY)] = odd[any(sizeof odd / sizeof *odd)];
    }
}

/* Write the right checksum behind each chunk of a PNG. */
static void mend_checks(uint8_t *bytes, size_t num_bytes) {
    for (size_t at = 8; num_bytes - at >= 12 && at <= num_bytes;) {
        size_t length = (size_t)bytes[at] << 24 | (size_t)bytes[at + 1] << 16 | (size_t)bytes[at + 2] << 8 | bytes[at + 3];
        if (length > num_bytes - at - 12) {
            return;
        }
        uint32_t check = libdeflate_crc32(0, bytes + at + 4, length + 4);
        for (int byte = 0; byte < 4; byte++) {
            bytes[at + 8 + length + (size_t)byte] = (uint8_t)(check >> (24 - 8 * byte));
        }
        at += length + 12;
    }
}

static void read_mask(Mask *mask, const uint8_t *bytes, size_t num_bytes) {
    MaskLimits limits = {MAX_BYTES, 1 << 20, 1000};
    uint8_t *copy = memcpy(allocate(num_bytes), bytes, num_bytes);
    if (decode_png(mask, &limits, copy, num_bytes)) {
        int64_t geometry[NUM_GEOMETRY], times = 1 + any(3);
        make_geometry(geometry, times * mask->height + any(2), times * mask->width + any(2));
        int item_bytes = 1 << any(4), height = (int)(1 + any(MAX_SIDE)), width = (int)(1 + any(MAX_SIDE));
        if (rand() % 8 && geometry[SHOWN_HEIGHT] <= MAX_SIDE && geometry[SHOWN_WIDTH] <= MAX_SIDE
            && geometry[SHOWN_HEIGHT] > 0 && geometry[SHOWN_WIDTH] > 0) {
            height = (int)geometry[SHOWN_HEIGHT];
            width = (int)geometry[SHOWN_WIDTH];
        }
        size_t out_bytes = (size_t)height * (size_t)width * (size_t)item_bytes;
        uint8_t *out = allocate(out_bytes), *plain = allocate(out_bytes);
        int is_shown = show_mask(mask, geometry, height, width, item_bytes, out), had_avx512 = mask->has_avx512;
        mask->has_avx512 = 0;
        if (show_mask(mask, geometry, height, width, item_bytes, plain) != is_shown
            || (is_shown && memcmp(out, plain, out_bytes) != 0)) {
            fprintf(stderr, "AVX-512 picks other numbers\n");
            abort();
        }
        mask->has_avx512 = had_avx512;
        num_masks += is_shown;
        free(out);
        free(plain);
    }
    free(copy);
}

static double number_of(const char *literal) {
    return strtod(literal, NULL);
}

static void read_list(const uint8_t *bytes, size_t num_bytes) {
    int64_t geometry[NUM_GEOMETRY];
    make_geometry(geometry, 1 + any(MAX_SIDE), 1 + any(MAX_SIDE));
    Wanted wanted = {
        .num_values = (int)any(3), .values = {{2, {"label", "category_id"}, 1}, {1, {"score"}, 0}},
        .max_objects = any(20), .number = number_of};
    Clip clip = {(Format)any(NUM_FORMATS), (double)any(3) / 2, (double)any(4)};
    size_t room = (size_t)wanted.max_objects;
    char *copy = memcpy(allocate(num_bytes), bytes, num_bytes);
    wanted.boxes = allocate(room * BOX_NUMBERS * sizeof(double));
    wanted.numbers = allocate(room * (size_t)wanted.num_values * sizeof(double));
    wanted.columns = allocate(room * (size_t)wanted.num_values * COLUMN_BYTES);
    float *shown = allocate(room * BOX_NUMBERS * sizeof(float));
    int64_t first = any(3), count = scan_objects(&wanted, copy, num_bytes, first);
    num_lists += count >= 0;
    int64_t kept = count > 0 ? clip_boxes(&clip, &wanted, geometry, first, count, shown) : 0;
    for (int64_t box = first; box < first + kept; box++) {
        for (int number = 0; number < BOX_NUMBERS; number++) {
            float side = (float)geometry[number % 2 ? SHOWN_HEIGHT : SHOWN_WIDTH];
            if (!(shown[BOX_NUMBERS * box + number] >= 0 && shown[BOX_NUMBERS * box + number] <= side)) {
                fprintf(stderr, "a box lies outside of the crop\n");
                abort();
            }
        }
    }
    num_boxes += kept > 0 ? kept : 0;
    free(copy);
    free(wanted.boxes);
    free(wanted.numbers);
    free(wanted.columns);
    free(shown);
}

static size_t damage(uint8_t *bytes, size_t num_bytes) {
    for (int times = rand() % 4; times > 0; times--) {
        size_t at = (size_t)any((int64_t)(rand() % 2 || num_bytes < 40 ? num_bytes : 40));
        bytes[at] = (uint8_t)(rand() % 2 ? LETTERS[any(sizeof LETTERS - 1)] : rand());
    }
    return rand() % 8 ? num_bytes : (size_t)any((int64_t)num_bytes);
}

int main(int argc, char **argv) {
    static uint8_t seeds[64][MAX_BYTES], input[MAX_BYTES];
    size_t sizes[64];
    int num_seeds = argc - 3 < 64 ? argc - 3 : 64;
    Mask *mask = new_mask();
    if (num_seeds < 1 || mask == NULL) {
        fprintf(stderr, "usage: fuzz SECONDS RANDOM_SEED SEED...\n");
        return 2;
    }
    for (int number = 0; number < num_seeds; number++) {
        FILE *file = fopen(argv[3 + number], "rb");
        if (file == NULL || (sizes[number] = fread(seeds[number], 1, MAX_BYTES, file)) == 0) {
            perror(argv[3 + number]);
            return 2;
        }
        fclose(file);
    }
    srand((unsigned)atoi(argv[2]));
    long num_inputs = 0;
    for (time_t end = time(NULL) + atoi(argv[1]); time(NULL) < end; num_inputs++) {
        int seed = (int)any(num_seeds);
        size_t num_bytes = damage(memcpy(input, seeds[seed], sizes[seed]), sizes[seed]);
        if (rand() % 4 && num_bytes > 8) {
            mend_checks(input, num_bytes);
        }
        if (rand() % 8 == 0) {  /* with buffers no larger than this mask needs */
            free_mask(mask);
            if ((mask = new_mask()) == NULL) {
                abort();
            }
        }
        read_mask(mask, input, num_bytes);
        read_list(input, num_bytes);
    }
    free_mask(mask);
    printf("%ld inputs, %ld masks, %ld lists, %ld boxes\n", num_inputs, num_masks, num_lists, num_boxes);
    return num_masks < num_inputs / 20 || num_lists < num_inputs / 20 || num_boxes < num_inputs / 200;
}

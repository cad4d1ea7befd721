/* Resize random rows with each kind of SIMD instructions that this processor has, and compare with the plain loops.

       gcc -g -O1 -fsanitize=address,undefined tests/support/check_resize.c mpload/images/_resize*.c -lm -o check
       ./check NUM_ROUNDS RANDOM_SEED

   It prints the names of the compared instructions. Buffers are as short as the decoder's, so that the sanitizer finds
   accesses beyond them. libjpeg is not linked, so this also runs where only its headers are, as under QEMU:
       aarch64-linux-gnu-gcc -static ... && qemu-aarch64 ./check NUM_ROUNDS RANDOM_SEED */

#include <stdlib.h>
#include <string.h>

#include "../../mpload/images/_decoder.h"

enum { MAX_LENGTH = 700, MAX_FULL = 300 };

static unsigned long state;

static int pick(int low, int high) {
    state = state * 6364136223846793005 + 1442695040888963407;  /* Knuth's MMIX generator */
    return low + (int)((state >> 33) % (unsigned)(high - low + 1));
}

_Noreturn void decline(Decoder *decoder, const char *cause) {
    (void)decoder;
    fprintf(stderr, "declined: %s\n", cause);
    exit(1);
}

/* Unlike the decoder's, buffers are exactly as long as is asked for. */
void *grow(Decoder *decoder, void *buffer, size_t *held_bytes, size_t bytes) {
    *held_bytes = bytes;
    if ((buffer = realloc(buffer, bytes)) == NULL) {
        decline(decoder, "out of memory");
    }
    return buffer;
}

static uint8_t *random_bytes(size_t num_bytes) {
    uint8_t *bytes = malloc(num_bytes);
    if (bytes == NULL) {
        decline(NULL, "out of memory");
    }
    int is_extreme = pick(0, 3) == 0;
    for (size_t at = 0; at < num_bytes; at++) {
        bytes[at] = (uint8_t)(is_extreme ? 255 * pick(0, 1) : pick(0, 255));
    }
    return bytes;
}

/* The numbers of an axis: a box of `length` pixels is resized to `full`, and `count` pixels from `first` are shown. */
typedef struct {
    int length, full, first, count, antialias;
} Numbers;

static Numbers pick_numbers(void) {
    Numbers numbers = {.length = pick(1, MAX_LENGTH), .antialias = pick(0, 1)};
    int least = numbers.antialias ? (numbers.length + (MAX_TAPS - 1) / 2 - 1) / ((MAX_TAPS - 1) / 2) : 1;
    numbers.full = pick(least, pick(0, 1) ? MAX_FULL : least + 9);
    numbers.first = pick(0, numbers.full - 1);
    numbers.count = pick(1, numbers.full - numbers.first);
    return numbers;
}

static void fill(Axis *axis, Numbers of) {
    fill_axis(NULL, axis, of.length, of.full, of.first, of.count, of.antialias);
}

static void compare(const void *ours, const void *plain, size_t num_bytes, Simd simd, const char *what) {
    if (memcmp(ours, plain, num_bytes) != 0) {
        fprintf(stderr, "%s with %s is not %s with plain loops\n", what, simd_names[simd], what);
        exit(1);
    }
}

static void check_row(Resizer *resizer, Simd simd) {
    Numbers of = pick_numbers();
    int origin = -pick(0, 20);  /* first decoded column, from the box */
    fill(&resizer->columns, of);
    int mirror = pick(0, 1);
    uint8_t *source = random_bytes((size_t)(of.length - origin) * 3 + PADDING_BYTES);
    size_t result_bytes = ((size_t)of.count * 3 + PADDING_BYTES) * sizeof(uint16_t);
    uint8_t *ours = random_bytes(result_bytes), *plain = random_bytes(result_bytes);
    resizer->simd = simd;
    fill_lanes(NULL, resizer, of.count, mirror, origin);
    resize_row(resizer, source, of.count, (uint16_t *)ours);
    resizer->simd = PLAIN;
    fill_lanes(NULL, resizer, of.count, mirror, origin);
    resize_row(resizer, source, of.count, (uint16_t *)plain);
    compare(ours, plain, (size_t)of.count * 3 * sizeof(uint16_t), simd, "a resized row");
    free(source);
    free(ours);
    free(plain);
}

static void check_mixture(Resizer *resizer, Simd simd) {
    Numbers of = pick_numbers();
    fill(&resizer->rows, of);
    size_t count = (size_t)pick(1, MAX_FULL) * 3, stride = count + PADDING_BYTES;
    free(resizer->ring);
    resizer->ring = (uint16_t *)random_bytes(stride * (size_t)(resizer->rows.taps + 1) * sizeof(uint16_t));
    for (size_t at = 0; at < stride * (size_t)resizer->rows.taps; at++) {
        resizer->ring[at] = resizer->ring[at] > 255 << 8 ? 255 << 8 : resizer->ring[at];
    }
    uint8_t *ours = random_bytes(count), *plain = random_bytes(count);
    int out = pick(0, of.count - 1);
    resizer->simd = simd;
    mix_rows(resizer, out, stride, count, ours);
    resizer->simd = PLAIN;
    mix_rows(resizer, out, stride, count, plain);
    compare(ours, plain, count, simd, "a mixture of rows");
    free(ours);
    free(plain);
}

int main(int argc, char **argv) {
    long num_rounds = argc == 3 ? atol(argv[1]) : 0;
    if (num_rounds < 1) {
        fprintf(stderr, "usage: check NUM_ROUNDS RANDOM_SEED\n");
        return 2;
    }
    state = (unsigned long)atol(argv[2]);
    static Resizer resizer;
    for (Simd simd = PLAIN; simd <= AVX512; simd++) {
        if (simd != PLAIN && best_simd(simd_names[simd]) == simd) {
            for (long round = 0; round < num_rounds; round++) {
                check_row(&resizer, simd);
                check_mixture(&resizer, simd);
            }
            puts(simd_names[simd]);
        }
    }
    free_resizer(&resizer);
    return 0;
}

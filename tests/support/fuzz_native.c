/* Damaged files, and any view of them, through the native decoder: pixels or a cause, no error of memory.

       FILES="mpload/images/_decoder.c mpload/images/_resize.c"
   With libFuzzer, guided by coverage (best with a libjpeg-turbo that is built with the same flags, WITH_SIMD=0):
       clang -g -O1 -fsanitize=fuzzer,address,undefined tests/support/fuzz_native.c $FILES -ljpeg -lm -o fuzz
       ./fuzz -max_len=20000 NEW_CORPUS tests/golden/formats
   With any compiler, and a main of its own that damages the seeds it is given; the suite runs this for seconds:
       gcc -g -O1 -fsanitize=address,undefined -DOWN_MAIN tests/support/fuzz_native.c $FILES -ljpeg -lm -o fuzz
       ./fuzz SECONDS tests/golden/formats/jpeg*

   An input is a file; its last bytes, which do no harm behind a picture, also choose the view. */

#include <stdlib.h>
#include <string.h>

#include "../../mpload/images/_decoder.h"

enum { VIEW_BYTES = 16, MAX_PIXELS = 300000, MAX_RESULT = 256 };

static Decoder *decoder;
static long num_decoded;

static int pick(const uint8_t *bytes, int low, int high) {
    return low + (bytes[0] << 8 | bytes[1]) % (high - low + 1);
}

/* As Python does, take the size from the header; then mostly a view that lies in the image, sometimes any. */
static int read_size(const uint8_t *data, size_t num_bytes, int *height, int *width) {
    if (setjmp(decoder->on_error)) {
        jpeg_abort_decompress(&decoder->info);
        return 0;
    }
    jpeg_mem_src(&decoder->info, data, (unsigned long)num_bytes);
    jpeg_read_header(&decoder->info, TRUE);
    *height = (int)decoder->info.image_height;
    *width = (int)decoder->info.image_width;
    jpeg_abort_decompress(&decoder->info);
    return 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
    if (num_bytes < VIEW_BYTES || (decoder == NULL && (decoder = new_decoder()) == NULL)) {
        return 0;
    }
    const uint8_t *input = data + num_bytes - VIEW_BYTES;
    int height, width;
    if (!read_size(data, num_bytes, &height, &width) || (long)height * width > MAX_PIXELS) {
        return 0;
    }
    View view = {.stored_height = height, .stored_width = width, .denominator = 1 << input[0] % 4};
    view.mirror = input[0] >> 2 & 1;
    view.antialias = input[0] >> 3 & 1;
    int scaled_height = (height + view.denominator - 1) / view.denominator;
    int scaled_width = (width + view.denominator - 1) / view.denominator;
    view.height = pick(input + 1, 1, scaled_height);
    view.width = pick(input + 3, 1, scaled_width);
    int is_anywhere = input[0] >> 4 == 0;
    view.top = pick(input + 5, 0, is_anywhere ? 70000 : scaled_height - view.height);
    view.left = pick(input + 7, 0, is_anywhere ? 70000 : scaled_width - view.width);
    view.full_height = pick(input + 9, 1, MAX_RESULT);
    view.full_width = pick(input + 11, 1, MAX_RESULT);
    view.out_top = input[13] % view.full_height;
    view.out_left = input[14] % view.full_width;
    view.out_height = 1 + input[15] % (view.full_height - view.out_top);
    view.out_width = 1 + input[15] % (view.full_width - view.out_left);
    if (!is_view(&view)) {
        return 0;
    }
    size_t result_bytes = (size_t)view.out_height * (size_t)view.out_width * 3;
    uint8_t *result = malloc(result_bytes);  /* so that a byte too many is seen */
    uint8_t *copy = malloc(num_bytes);
    if (result == NULL || copy == NULL) {
        abort();
    }
    memcpy(copy, data, num_bytes);
    num_decoded += decode_view(decoder, copy, num_bytes, &view, result);
    free(copy);
    free(result);
    return 0;
}

#ifdef OWN_MAIN
#include <time.h>

typedef struct {
    uint8_t *bytes;
    size_t num_bytes;
} Seed;

static Seed read_seed(const char *path) {
    FILE *file = fopen(path, "rb");
    Seed seed = {malloc(1 << 20), 0};
    if (file == NULL || seed.bytes == NULL) {
        perror(path);
        exit(1);
    }
    seed.num_bytes = fread(seed.bytes, 1, 1 << 20, file);
    fclose(file);
    return seed;
}

static size_t damage(uint8_t *bytes, size_t num_bytes) {
    int times = rand() % 6;
    for (int time = 0; time < times; time++) {
        size_t reach = rand() % 2 ? num_bytes : num_bytes < 700 ? num_bytes : 700;
        bytes[(size_t)rand() % reach] = (uint8_t)(rand() % 3 ? rand() : rand() % 2 * 255);
    }
    return rand() % 8 ? num_bytes : 1 + (size_t)rand() % num_bytes;
}

int main(int argc, char **argv) {
    int num_seeds = argc - 2;
    if (num_seeds < 1) {
        fprintf(stderr, "usage: fuzz SECONDS SEED...\n");
        return 2;
    }
    Seed *seeds = calloc((size_t)num_seeds, sizeof *seeds);
    long num_inputs = num_seeds;
    for (int number = 0; number < num_seeds; number++) {
        seeds[number] = read_seed(argv[2 + number]);
        LLVMFuzzerTestOneInput(seeds[number].bytes, seeds[number].num_bytes);
    }
    static uint8_t input[(1 << 20) + VIEW_BYTES];
    time_t end = time(NULL) + atoi(argv[1]);
    for (; time(NULL) < end; num_inputs++) {
        Seed seed = seeds[rand() % num_seeds];
        memcpy(input, seed.bytes, seed.num_bytes);
        size_t num_bytes = damage(input, seed.num_bytes);
        for (int at = 0; at < VIEW_BYTES; at++) {
            input[num_bytes++] = (uint8_t)rand();
        }
        LLVMFuzzerTestOneInput(input, num_bytes);
    }
    for (int number = 0; number < num_seeds; number++) {
        free(seeds[number].bytes);
    }
    free(seeds);
    if (decoder != NULL) {
        free_decoder(decoder);
    }
    printf("%ld inputs, %ld pictures\n", num_inputs, num_decoded);
    return num_decoded < num_inputs / 20;
}
#endif

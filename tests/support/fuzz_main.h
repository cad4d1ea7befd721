/* The part of fuzz_native.c that damages seeds by itself, without libFuzzer. */

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

/* Change some bytes, mostly in the header or among the last; put in a marker; cut off the end. */
static size_t damage(uint8_t *bytes, size_t num_bytes) {
    int times = rand() % 6;
    for (int time = 0; time < times; time++) {
        size_t reach = rand() % 2 || num_bytes < 700 ? num_bytes : 700;
        size_t at = rand() % 4 ? (size_t)rand() % reach : num_bytes - 1 - (size_t)rand() % reach;
        bytes[at] = (uint8_t)(rand() % 3 ? rand() : rand() % 2 * 255);
        if (rand() % 4 == 0 && at + 1 < num_bytes) {
            bytes[at] = 0xFF;
            bytes[at + 1] = (uint8_t)(rand() % 2 ? 0xD0 + rand() % 10 : rand() % 2 * 255);
        }
    }
    return rand() % 8 ? num_bytes : 1 + (size_t)rand() % num_bytes;
}

int main(int argc, char **argv) {
    int num_seeds = argc - 3;
    if (num_seeds < 1) {
        fprintf(stderr, "usage: fuzz SECONDS RANDOM_SEED SEED...\n");
        return 2;
    }
    srand((unsigned)atoi(argv[2]));
    Seed *seeds = calloc((size_t)num_seeds, sizeof *seeds);
    long num_inputs = num_seeds;
    for (int number = 0; number < num_seeds; number++) {
        seeds[number] = read_seed(argv[3 + number]);
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
    if (with_huffman != NULL && without_huffman != NULL) {
        free_decoder(with_huffman);
        free_decoder(without_huffman);
    }
    printf("%ld inputs, %ld pictures, %ld of them without libjpeg-turbo's Huffman decoder, %ld with starts of rows, "
           "%ld photos of chunks, %ld together, %ld in one pass, %ld rewritten\n", num_inputs, num_decoded,
           num_huffman_decoded, num_entries, num_photos, num_together, num_in_one_pass, num_rewritten);
    return num_huffman_decoded < num_inputs / 20 || num_entries < num_inputs / 20 || num_photos < num_inputs / 20
        || num_together < num_inputs / 20 || num_in_one_pass < num_inputs / 20 || num_rewritten < num_inputs / 20;
}

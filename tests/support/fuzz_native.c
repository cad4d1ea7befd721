/* Damaged files, and any view of them, through the native decoder: no error of memory, and the same pixels or the same
   cause whether Huffman codes are decoded by mpload or by libjpeg-turbo, with or without SIMD instructions, and with or
   without the starts of rows, or several views or scales at once. Each file is also decoded as one of many photos. A file that
   can be rewritten as a baseline JPEG has the same pixels afterwards.

       FILES="tests/support/fuzz_native.c mpload/images/_[cdhlprs]*.c mpload/images/_together.c"
   With libFuzzer, guided by coverage (best with a libjpeg-turbo that is built with the same flags, WITH_SIMD=0):
       clang -g -O1 -fsanitize=fuzzer,address,undefined $FILES -ljpeg -lm -o fuzz
       ./fuzz -max_len=20000 NEW_CORPUS SEEDS
   With any compiler, and a main of its own that damages the seeds it is given; the suite runs this for seconds:
       gcc -g -O1 -fsanitize=address,undefined -DOWN_MAIN $FILES -ljpeg -lm -o fuzz
       ./fuzz SECONDS RANDOM_SEED SEEDS/*
   `python -m tests.support.fuzz_seeds SEEDS` makes a folder of seeds.

   An input is a file; its last bytes, which do no harm behind a picture, also choose the view. */

#include <stdlib.h>
#include <string.h>

#include "../../mpload/images/_coefficients.h"
#include "../../mpload/images/_decoder.h"
#include "../../mpload/images/_huffman.h"
#include "../../mpload/images/_photos.h"

enum { VIEW_BYTES = 16, NUM_PHOTOS = 3, MAX_PIXELS = 300000, MAX_RESULT = 256 };

static Decoder *with_huffman, *without_huffman;
static long num_together, num_in_one_pass, num_decoded, num_huffman_decoded, num_entries, num_photos, num_rewritten;

static int pick(const uint8_t *bytes, int low, int high) {
    return low + (bytes[0] << 8 | bytes[1]) % (high - low + 1);
}

/* As Python does, take the size from the header; then mostly a view that lies in the image, sometimes any. */
static int read_size(const uint8_t *data, size_t num_bytes, int *height, int *width) {
    Decoder *decoder = without_huffman;
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

static void *allocate(size_t num_bytes) {
    void *bytes = malloc(num_bytes);
    if (bytes == NULL) {
        abort();
    }
    return bytes;
}

/* What libjpeg-turbo alone makes of a file. */
typedef struct {
    const uint8_t *data;
    size_t num_bytes;
    const View *view;
    uint8_t *pixels;
    size_t result_bytes;
    int is_made;
} Expected;

static void compare(const Expected *expected, int is_made, const uint8_t *pixels) {
    if (is_made != expected->is_made || memcmp(pixels, expected->pixels, is_made ? expected->result_bytes : 0) != 0
        || (!is_made && strcmp(with_huffman->cause, without_huffman->cause) != 0)) {
        fprintf(stderr, "the two ways disagree: %s; %s\n", is_made ? "pixels" : with_huffman->cause,
                expected->is_made ? "pixels" : without_huffman->cause);
        abort();
    }
}

static int decode_with_entry(const Expected *expected, const uint8_t *entry, size_t entry_bytes, uint8_t *pixels) {
    uint8_t *copy = allocate(entry_bytes);
    memcpy(copy, entry, entry_bytes);
    int is_made = decode_view_with_rows(
        with_huffman, expected->data, expected->num_bytes, expected->view, copy, entry_bytes, pixels);
    free(copy);
    return is_made;
}

/* The pixels are the same with a valid entry and with a damaged one. A forged one does no harm to memory. */
static void decode_with_entries(const Expected *expected, uint8_t *pixels, uint32_t dice) {
    Rows *rows = &with_huffman->huffman->rows;
    compare(expected, decode_with_entry(expected, (const uint8_t *)"", 0, pixels), pixels);
    size_t entry_bytes = rows->entry_bytes;
    if (entry_bytes == 0) {
        return;
    }
    num_entries++;
    uint8_t *entry = allocate(entry_bytes);
    memcpy(entry, rows->entry, entry_bytes);
    compare(expected, decode_with_entry(expected, entry, entry_bytes, pixels), pixels);
    if (rows->entry_bytes != 0 && with_huffman->is_huffman_used) {
        fprintf(stderr, "an entry was refused\n");
        abort();
    }
    entry[dice % entry_bytes] ^= (uint8_t)(1 << (dice >> 24) % 8);
    compare(expected, decode_with_entry(expected, entry, entry_bytes - dice % 64 / 63, pixels), pixels);
    free(entry);
    unsigned num_wrong = 1 + dice % 3;
    for (unsigned number = 0; number < num_wrong; number++) {
        dice = dice * 1664525 + 1013904223;
        RowStart *start = &rows->starts[(dice >> 8) % rows->num_rows];
        uint64_t positions[] = {start->position + (dice >> 16) % 64, start->position - (dice >> 16) % 64, dice,
                                expected->num_bytes * 8 - (dice >> 16) % 99, (uint64_t)dice << 32};
        start->position = positions[(dice >> 3) % 5];
        start->predictors[dice % MAX_ROW_COMPONENTS] += dice >> 12;
    }
    if (dice >> 31) {
        rows->num_rows = dice % (rows->num_rows + 1);
    }
    make_entry(rows, expected->data, expected->num_bytes);
    entry_bytes = rows->entry_bytes;
    entry = allocate(entry_bytes);
    memcpy(entry, rows->entry, entry_bytes);
    decode_with_entry(expected, entry, entry_bytes, pixels);
    free(entry);
}

/* The photo as a whole at this scale and others, by one call that decodes its codes once: all parts are as they are
   alone, and so is the view when it is resized from one. */
static void decode_parts(const Expected *expected, uint8_t *pixels) {
    static const int orders[][4] = {{1, 2, 4, 8}, {8, 4, 2, 1}, {2, 8, 1, 4}};
    const int *order = orders[expected->num_bytes % 3];
    if ((long)expected->view->stored_height * expected->view->stored_width > MAX_PIXELS) {
        return;
    }
    View parts[4];
    uint8_t *outs[4], *alone[4];
    size_t sizes[4];
    for (int number = 0; number < 4; number++) {
        View *part = &parts[number];
        *part = *expected->view;
        part->denominator = order[number];
        part->top = part->left = part->out_top = part->out_left = part->mirror = 0;
        part->height = part->full_height = part->out_height = (part->stored_height + order[number] - 1) / order[number];
        part->width = part->full_width = part->out_width = (part->stored_width + order[number] - 1) / order[number];
        sizes[number] = (size_t)part->height * (size_t)part->width * 3;
        outs[number] = allocate(sizes[number] + PADDING_BYTES);
        alone[number] = allocate(sizes[number]);
    }
    int is_made = decode_views(with_huffman, expected->data, expected->num_bytes, parts, outs, 4), is_same = 1;
    for (int number = 0; number < 4; number++) {
        int is_alone = decode_view(without_huffman, expected->data, expected->num_bytes, &parts[number], alone[number]);
        is_same &= !is_made || (is_alone && memcmp(outs[number], alone[number], sizes[number]) == 0);
        if (is_made && order[number] == expected->view->denominator) {
            View view = *expected->view;
            view.stored_height = parts[number].height;
            view.stored_width = parts[number].width;
            if (resize_view(with_huffman, outs[number], &view, pixels)) {
                is_same &= expected->is_made && memcmp(pixels, expected->pixels, expected->result_bytes) == 0;
            }
        }
        free(outs[number]);
        free(alone[number]);
    }
    if (!is_same) {
        fprintf(stderr, "parts that are decoded together differ from those that are decoded alone\n");
        abort();
    }
    num_together += is_made;
}

typedef struct {
    uint8_t is_made[NUM_PHOTOS];
    uint8_t *pixels;
} MadePhotos;

static MadePhotos decode_photos_with(Decoder *decoder, Photos photos, size_t result_bytes) {
    MadePhotos made = {.pixels = allocate(NUM_PHOTOS * result_bytes)};
    photos.out = made.pixels;
    photos.is_made = made.is_made;
    if (!decode_photos(decoder, &photos)) {
        abort();
    }
    return made;
}

#include "fuzz_crops.h"

static void decode_all_ways(const uint8_t *data, size_t num_bytes, const View *view, uint32_t dice) {
    size_t result_bytes = (size_t)view->out_height * (size_t)view->out_width * 3;
    uint8_t *copy = allocate(num_bytes);  /* so that a byte too many is seen */
    uint8_t *ours = allocate(result_bytes), *theirs = allocate(result_bytes);
    memcpy(copy, data, num_bytes);
    Expected expected = {copy, num_bytes, view, theirs, result_bytes, 0};
    expected.is_made = decode_view(without_huffman, copy, num_bytes, view, theirs);
    decode_view(with_huffman, copy, num_bytes, view, ours);  /* its tables are made when they come a second time */
    compare(&expected, decode_view(with_huffman, copy, num_bytes, view, ours), ours);
    num_decoded += expected.is_made;
    num_huffman_decoded += expected.is_made && with_huffman->is_huffman_used;
    decode_with_entries(&expected, ours, dice);
    decode_parts(&expected, ours);
    decode_in_one_pass(&expected, dice);
    free(copy);
    free(ours);
    free(theirs);
}

/* Compare with the photos that `expected` holds, and free those of `made`. */
static void compare_photos(const MadePhotos *expected, MadePhotos made, size_t result_bytes) {
    for (size_t photo = 0; photo < 2; photo++) {
        size_t start = photo * result_bytes;
        if ((expected->is_made[photo] != 0) != (made.is_made[photo] != 0)
            || memcmp(expected->pixels + start, made.pixels + start, made.is_made[photo] ? result_bytes : 0) != 0) {
            fprintf(stderr, "the ways to decode a photo of a chunk disagree\n");
            abort();
        }
    }
    free(made.pixels);
}

/* The file, and it again with a wrong start or length, as photos of a chunk: without entries, with a wrong entry, and
   with the right one. */
static void decode_photos_all_ways(const uint8_t *data, size_t num_bytes, const uint8_t *input) {
    RandomCrop random = {{0.08, 1}, {0.75, 1.5}, {-0.287682, 0.405465}, 0.5};
    int64_t starts[] = {0, pick(input + 1, -300, 300)}, sample_ids[] = {input[3], input[4]};
    int64_t lengths[] = {(int64_t)num_bytes, (int64_t)num_bytes + pick(input + 5, -300, 300)};
    uint8_t *copy = allocate(num_bytes);
    Photos photos = {
        .area = memcpy(copy, data, num_bytes), .area_bytes = num_bytes, .starts = starts, .lengths = lengths,
        .sample_ids = sample_ids, .count = 2, .key = {input[7], input[8]}, .random = input[0] & 1 ? &random : NULL,
        .antialias = input[0] >> 1 & 1, .is_upright = input[0] >> 2 & 1, .max_bytes = 1 << 20, .max_pixels = MAX_PIXELS,
        .max_pixels_per_byte = 100000, .max_scans = 1 + input[12] % 4, .size = {1 + input[9] % 40, 1 + input[10] % 40}};
    photos.short_side = 40 + input[11];
    size_t result_bytes = (size_t)photos.size[0] * (size_t)photos.size[1] * 3;
    MadePhotos expected = decode_photos_with(without_huffman, photos, result_bytes);
    num_photos += expected.is_made[0] + expected.is_made[1];
    compare_photos(&expected, decode_photos_with(with_huffman, photos, result_bytes), result_bytes);
    if (expected.is_made[0]) {
        const Rows *rows = &with_huffman->huffman->rows;
        int64_t bounds[] = {0, 1, 0, -1};
        photos.lengths = (int64_t[]){lengths[0], -1};  /* the second is left out, so that `rows` are those of the first */
        free(decode_photos_with(with_huffman, photos, result_bytes).pixels);  /* its tables are made now */
        expected.is_made[1] = 0;
        photos.entries = input;
        photos.entries_bytes = 1;
        photos.entry_bounds = bounds;
        compare_photos(&expected, decode_photos_with(with_huffman, photos, result_bytes), result_bytes);
        size_t entry_bytes = rows->entry_bytes;
        uint8_t *entry = allocate(entry_bytes + 1);
        memcpy(entry, rows->entry_bytes ? rows->entry : input, entry_bytes);
        photos.entries = entry;
        photos.entries_bytes = entry_bytes;
        bounds[1] = (int64_t)entry_bytes;
        MadePhotos made = decode_photos_with(with_huffman, photos, result_bytes);
        if (made.is_made[0] != (entry_bytes != 0)) {  /* an empty one is declined */
            fprintf(stderr, "an entry of a chunk was refused\n");
            abort();
        }
        expected.is_made[0] = made.is_made[0];
        compare_photos(&expected, made, result_bytes);
        bounds[0] = pick(input + 13, -9, 9);
        made = decode_photos_with(with_huffman, photos, result_bytes);
        expected.is_made[0] = made.is_made[0];  /* a start outside of the entries is declined */
        compare_photos(&expected, made, result_bytes);
        free(entry);
    }
    free(copy);
    free(expected.pixels);
}

/* Four tables with a code for every symbol that baseline scans have: 12 codes of 4 bits, or 162 of 8 bits. */
static void fill_tables(Table tables[NUM_KINDS]) {
    memset(tables, 0, NUM_KINDS * sizeof *tables);
    for (int kind = 0; kind < NUM_KINDS; kind++) {
        int is_ac = kind % 2, num_symbols = 0;
        for (int symbol = 0; symbol < NUM_SYMBOLS; symbol++) {
            int is_needed = is_ac ? (symbol & 15 ? (symbol & 15) <= 10 : symbol == 0 || symbol == 0xF0) : symbol < 12;
            if (is_needed) {
                tables[kind].symbols[num_symbols++] = (uint8_t)symbol;
            }
        }
        tables[kind].counts[is_ac ? 7 : 3] = (uint8_t)num_symbols;
    }
}

static void rewrite_and_compare(const uint8_t *data, size_t num_bytes, const View *view) {
    Table tables[NUM_KINDS];
    fill_tables(tables);
    size_t out_bytes = 2 * num_bytes + 2000;
    uint8_t *copy = allocate(num_bytes), *out = allocate(out_bytes);
    memcpy(copy, data, num_bytes);
    size_t written_bytes = rewrite(copy, num_bytes, tables, out, out_bytes);
    Counts counts = {{0}};
    int is_counted = count_symbols(copy, num_bytes, counts);
    size_t result_bytes = (size_t)view->out_height * (size_t)view->out_width * 3;
    uint8_t *before = allocate(result_bytes), *after = allocate(result_bytes);
    num_rewritten += written_bytes > 0;
    if (written_bytes > 0 && decode_view(without_huffman, copy, num_bytes, view, before)
        && (!is_counted || !decode_view(without_huffman, out, written_bytes, view, after)
            || memcmp(before, after, result_bytes) != 0)) {
        fprintf(stderr, "a rewritten file has other pixels: %s\n", without_huffman->cause);
        abort();
    }
    free(copy);
    free(out);
    free(before);
    free(after);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
    if (with_huffman == NULL) {
        with_huffman = new_decoder(1);
        without_huffman = new_decoder(0);
    }
    if (num_bytes < VIEW_BYTES || with_huffman == NULL || without_huffman == NULL) {
        return 0;
    }
    without_huffman->simd = PLAIN;
    const uint8_t *input = data + num_bytes - VIEW_BYTES;
    decode_photos_all_ways(data, num_bytes, input);
    decode_crops_all_ways(data, num_bytes, input);
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
    if (input[0] >> 4 == 1) {  /* neither resized nor mirrored */
        view.full_height = view.out_height = view.height;
        view.full_width = view.out_width = view.width;
        view.out_top = view.out_left = view.mirror = 0;
    }
    if (is_view(&view)) {
        uint32_t dice = 0;
        for (int at = 0; at < VIEW_BYTES; at++) {
            dice = dice * 16777619 ^ input[at];
        }
        decode_all_ways(data, num_bytes, &view, dice);
        rewrite_and_compare(data, num_bytes, &view);
    }
    return 0;
}

#ifdef OWN_MAIN
#include "fuzz_main.h"
#endif

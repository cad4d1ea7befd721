/* The part of fuzz_native.c that makes several views or crops of a photo in one pass. */

/* The view among others, at all scales, in one pass: all are as they are alone. */
static void decode_in_one_pass(const Expected *expected, uint32_t dice) {
    enum { NUM_VIEWS = 4 };
    View views[NUM_VIEWS];
    uint8_t *outs[NUM_VIEWS];
    size_t sizes[NUM_VIEWS];
    for (int number = 0; number < NUM_VIEWS; number++) {
        View *view = &views[number];
        *view = *expected->view;
        if (number > 0) {
            dice = dice * 1664525 + 1013904223;
            view->denominator = 1 << (dice >> 28) % (1 + number % 4);
            int height = (view->stored_height + view->denominator - 1) / view->denominator;
            int width = (view->stored_width + view->denominator - 1) / view->denominator;
            view->height = 1 + (int)(dice >> 4) % height;
            view->width = 1 + (int)(dice >> 7) % width;
            view->top = (int)(dice >> 11) % (height - view->height + 1);
            view->left = (int)(dice >> 14) % (width - view->width + 1);
            view->antialias = dice >> 24 & 1;
            view->mirror = dice >> 25 & 1;
        }
        sizes[number] = (size_t)view->out_height * (size_t)view->out_width * 3;
        outs[number] = allocate(sizes[number]);
    }
    int is_made = decode_together(with_huffman, expected->data, expected->num_bytes, views, outs, NUM_VIEWS);
    for (int number = 0; number < NUM_VIEWS; number++) {
        uint8_t *alone = allocate(sizes[number]);
        if (is_made
            && (!decode_view(without_huffman, expected->data, expected->num_bytes, &views[number], alone)
                || memcmp(outs[number], alone, sizes[number]) != 0)) {
            fprintf(stderr, "a view that is made in one pass with others differs from the view alone\n");
            abort();
        }
        free(alone);
        free(outs[number]);
    }
    num_in_one_pass += is_made;
}

/* The file, it again with a wrong start or length, and the file before it, as photos with several crops each. Every crop
   must be the same as when it is made alone. */
static void decode_crops_all_ways(const uint8_t *data, size_t num_bytes, const uint8_t *input) {
    static uint8_t *before = NULL;
    static size_t num_before = 0;
    RandomCrop random = {{0.2, 1}, {0.75, 1.5}, {-0.287682, 0.405465}, 0.5};
    size_t num_all = num_bytes + num_before;
    int64_t starts[NUM_PHOTOS] = {0, pick(input + 1, -300, 300), (int64_t)num_bytes};
    int64_t sample_ids[NUM_PHOTOS] = {input[3], input[4], 7};
    int64_t lengths[NUM_PHOTOS] = {
        (int64_t)num_bytes, (int64_t)num_bytes + pick(input + 5, -300, 300), (int64_t)num_before};
    uint8_t *copy = allocate(num_all), is_made[NUM_PHOTOS];
    memcpy(copy, data, num_bytes);
    if (before != NULL) {
        memcpy(copy + num_bytes, before, num_before);
        free(before);
    }
    before = allocate(num_bytes);
    memcpy(before, data, num_before = num_bytes);
    Photos photos = {
        .area = copy, .area_bytes = num_all, .starts = starts, .lengths = lengths, .sample_ids = sample_ids,
        .count = NUM_PHOTOS, .key = {input[7], input[8]}, .is_upright = input[0] >> 2 & 1,
        .max_bytes = 1 << 20, .max_pixels = MAX_PIXELS, .max_pixels_per_byte = 100000,
        .max_scans = 1 + input[12] % 4, .is_made = is_made};
    Group groups[2] = {{.count = 2, .random = random}, {.count = 1, .crop = {.short_side = 40 + input[11]}}};
    groups[0].crop.random = &groups[0].random;
    size_t sizes[2];
    for (int number = 0; number < 2; number++) {
        groups[number].crop.size[0] = 1 + input[9 + number] % 40;
        groups[number].crop.size[1] = 1 + input[10 + number] % 40;
        groups[number].crop.antialias = input[0] >> number & 1;
        sizes[number] = (size_t)groups[number].crop.size[0] * (size_t)groups[number].crop.size[1] * 3;
        groups[number].out = allocate(NUM_PHOTOS * (size_t)groups[number].count * sizes[number]);
    }
    if (!decode_crops_of_photos(with_huffman, &photos, groups, 2)) {
        abort();
    }
    for (int number = 0; number < 2; number++) {  /* the first crop of each group is the one that is made alone */
        Photos alone = photos;
        alone.random = groups[number].crop.random;
        alone.short_side = groups[number].crop.short_side;
        alone.antialias = groups[number].crop.antialias;
        memcpy(alone.size, groups[number].crop.size, sizeof alone.size);
        MadePhotos made = decode_photos_with(without_huffman, alone, sizes[number]);
        for (size_t photo = 0; photo < NUM_PHOTOS; photo++) {
            const uint8_t *crop = groups[number].out + photo * (size_t)groups[number].count * sizes[number];
            if (is_made[photo]
                && (!made.is_made[photo] || memcmp(crop, made.pixels + photo * sizes[number], sizes[number]) != 0)) {
                fprintf(stderr, "a crop that is made with others differs from the crop alone\n");
                abort();
            }
        }
        free(made.pixels);
    }
    free(groups[0].out);
    free(groups[1].out);
    free(copy);
}

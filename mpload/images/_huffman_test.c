/* The self-test of the Huffman decoder, run at import: the installed libjpeg-turbo may differ from those it was tested
   with.

   The test photos are encoded by libjpeg-turbo. They show noise that grows from top to bottom, so that all kinds of
   codes occur. */

#include <stdlib.h>
#include <string.h>

#include "_decoder.h"
#include "_huffman.h"

typedef struct {
    struct jpeg_error_mgr errors;
    jmp_buf on_error;
} Errors;

enum {
    HEIGHT = 70,
    WIDTH = 90,
    SHOWN_SIDE = 20,
    PHOTO_BYTES = 2 * 3 * HEIGHT * WIDTH    /* no photo is longer, once encoded */
};

static void fail(j_common_ptr info) {
    longjmp(((Errors *)info->err)->on_error, 1);
}

typedef struct {
    int num_colours, sampling, quality;
    unsigned restart_interval;
    int denominator;    /* decoded at 1/denominator of the size */
} Case;

/* Write a JPEG to `data` and return its length; returns 0 if memory runs out. (libjpeg could allocate `data` itself, but
   would leave a pointer to freed memory if that fails.) */
static size_t make_photo(const Case *like, uint8_t *data) {
    struct jpeg_compress_struct info;
    Errors errors;
    unsigned long num_bytes = PHOTO_BYTES;
    memset(&info, 0, sizeof info);
    info.err = jpeg_std_error(&errors.errors);
    errors.errors.error_exit = fail;
    if (setjmp(errors.on_error)) {
        jpeg_destroy_compress(&info);
        return 0;
    }
    jpeg_create_compress(&info);
    jpeg_mem_dest(&info, &data, &num_bytes);
    info.image_width = WIDTH;
    info.image_height = HEIGHT;
    info.input_components = like->num_colours;
    info.in_color_space = like->num_colours == 3 ? JCS_RGB : JCS_GRAYSCALE;
    jpeg_set_defaults(&info);
    jpeg_set_quality(&info, like->quality, TRUE);
    info.comp_info[0].h_samp_factor = info.comp_info[0].v_samp_factor = like->sampling;
    info.restart_interval = like->restart_interval;
    jpeg_start_compress(&info, TRUE);
    uint8_t row[3 * WIDTH];
    JSAMPROW rows[] = {row};
    uint32_t noise = 1;
    for (int y = 0; y < HEIGHT; y++) {
        for (int x = 0; x < like->num_colours * WIDTH; x++) {
            noise = noise * 1664525 + 1013904223;  /* the generator of Numerical Recipes */
            row[x] = (uint8_t)(128 + (int)(noise >> 24) * y / HEIGHT);
        }
        jpeg_write_scanlines(&info, rows, 1);
    }
    jpeg_finish_compress(&info);
    jpeg_destroy_compress(&info);
    return num_bytes <= PHOTO_BYTES ? num_bytes : 0;
}

/* Decode with the entry that was made just before. */
static int uses_rows(Decoder *decoder, const uint8_t *data, size_t num_bytes, const View *view, uint8_t *pixels) {
    const Rows *rows = &decoder->huffman->rows;
    memset(pixels, 0, 3 * SHOWN_SIDE * SHOWN_SIDE);
    return rows->entry_bytes != 0
        && decode_view_with_rows(decoder, data, num_bytes, view, rows->entry, rows->entry_bytes, pixels)
        && rows->entry_bytes == 0;
}

/* Decode two scales in step. */
static int uses_shared(
    Decoder *decoder, const uint8_t *data, size_t num_bytes, const View *views, uint8_t *const *pixels
) {
    Together work;
    int is_right = begin_together(&work, decoder, 1, data, num_bytes, views, pixels, 2);
    while (is_right && !is_shown(&work)) {
        is_right = show_strip(&work);
    }
    return is_right;
}

static View view_at(int denominator) {
    int height = (HEIGHT + denominator - 1) / denominator, width = (WIDTH + denominator - 1) / denominator;
    return (View){
        .stored_height = HEIGHT, .stored_width = WIDTH, .denominator = denominator,
        .top = height / 2, .left = width / 3, .height = height / 3, .width = width / 3,
        .full_height = SHOWN_SIDE, .full_width = SHOWN_SIDE, .out_height = SHOWN_SIDE, .out_width = SHOWN_SIDE};
}

static int agree(Decoder *with, Decoder *without, const Case *on) {
    uint8_t data[PHOTO_BYTES], right[2][3 * SHOWN_SIDE * SHOWN_SIDE], pixels[2][sizeof right[0]];
    uint8_t *outs[] = {pixels[0], pixels[1]};
    size_t num_bytes = make_photo(on, data);
    View views[] = {view_at(on->denominator), view_at(on->denominator == 1 ? 2 : on->denominator / 2)};
    return num_bytes != 0
        && decode_view(without, data, num_bytes, &views[0], right[0])
        && decode_view(without, data, num_bytes, &views[1], right[1])
        && decode_view(with, data, num_bytes, &views[0], pixels[0])  /* only notes the tables */
        && decode_view_with_rows(with, data, num_bytes, &views[0], data, 0, pixels[0]) && with->is_huffman_used
        && memcmp(pixels[0], right[0], sizeof right[0]) == 0
        && uses_rows(with, data, num_bytes, &views[0], pixels[0])
        && memcmp(pixels[0], right[0], sizeof right[0]) == 0
        && uses_shared(with, data, num_bytes, views, outs)
        && memcmp(pixels, right, sizeof right) == 0;
}

int huffman_agrees(void) {
    static const Case cases[] = {
        {3, 2, 90, 0, 1}, {3, 1, 100, 7, 1}, {1, 1, 75, 0, 1}, {3, 2, 95, 0, 2}, {3, 1, 80, 0, 8}};
    Decoder *with = new_decoder(1), *without = new_decoder(0);
    int is_same = with != NULL && without != NULL;
    for (size_t number = 0; is_same && number < sizeof cases / sizeof *cases; number++) {
        is_same = agree(with, without, &cases[number]);
    }
    if (with != NULL) {
        free_decoder(with);
    }
    if (without != NULL) {
        free_decoder(without);
    }
    return is_same;
}

/* Decode part of a JPEG, resize it and mirror it, and write the result straight into the caller's array.

   Unusual files are declined: CMYK, more or fewer than 8 bits per sample, damage, missing scans, and anything that makes
   libjpeg warn. The caller then uses a slower decoder, which handles the file or reports what is wrong. Upsampling is
   always smooth ("fancy"): the plain kind in libjpeg-turbo 2.1 produces wrong pixels, or crashes, when rows or columns
   are left out. */

#include <stdlib.h>
#include <string.h>

#include "_decoder.h"
#include "_huffman.h"

static void fail(j_common_ptr common) {
    Decoder *decoder = (Decoder *)common->client_data;
    common->err->format_message(common, decoder->cause);
    longjmp(decoder->on_error, 1);
}

static void on_message(j_common_ptr common, int level) {
    if (level < 0) {  /* a warning: the slower decoder judges whether it affects the pixels */
        fail(common);  /* other messages are dropped */
    }
}

void decline(Decoder *decoder, const char *cause) {
    snprintf(decoder->cause, sizeof decoder->cause, "%s", cause);
    longjmp(decoder->on_error, 1);
}

void *grow(Decoder *decoder, void *buffer, size_t *held_bytes, size_t bytes) {
    if (bytes <= *held_bytes) {
        return buffer;
    }
    void *larger;
    if (posix_memalign(&larger, ALIGNMENT, bytes) != 0) {
        decline(decoder, "out of memory");
    }
    if (buffer != NULL) {
        memcpy(larger, buffer, *held_bytes);
        free(buffer);
    }
    memset((uint8_t *)larger + *held_bytes, 0, bytes - *held_bytes);
    *held_bytes = bytes;
    return larger;
}

static int set_up(Decoder *decoder) {
    decoder->info.err = jpeg_std_error(&decoder->errors);
    decoder->errors.error_exit = fail;
    decoder->errors.emit_message = on_message;
    decoder->info.client_data = decoder;
    if (setjmp(decoder->on_error)) {
        jpeg_destroy_decompress(&decoder->info);
        return 0;
    }
    jpeg_create_decompress(&decoder->info);
    decoder->simd = best_simd(NULL);
    return 1;
}

Decoder *new_decoder(int with_huffman) {
    Decoder *decoder = calloc(1, sizeof *decoder);
    if (decoder != NULL && !set_up(decoder)) {
        free(decoder);
        decoder = NULL;
    }
    if (decoder != NULL && with_huffman && (decoder->huffman = calloc(1, sizeof *decoder->huffman)) == NULL) {
        free_decoder(decoder);
        decoder = NULL;
    }
    return decoder;
}

void free_decoder(Decoder *decoder) {
    jpeg_destroy_decompress(&decoder->info);
    if (decoder->huffman != NULL) {
        free_rows(&decoder->huffman->rows);
        free(decoder->huffman->recent);
    }
    for (int number = 0; number < NUM_SCALES - 1; number++) {
        if (decoder->others[number] != NULL) {
            free_decoder(decoder->others[number]);
        }
    }
    if (decoder->beside != NULL) {
        free_decoder(decoder->beside);
    }
    for (size_t number = 0; number < decoder->resizers_bytes / sizeof *decoder->resizers; number++) {
        free_resizer(&decoder->resizers[number]);
    }
    free(decoder->resizers);
    free(decoder->block);
    free(decoder->huffman);
    free(decoder);
}

static int try_view(
    Decoder *decoder, Huffman *huffman, const uint8_t *data, size_t num_bytes, const View *view, uint8_t *out
) {
    struct jpeg_decompress_struct *info = &decoder->info;
    decoder->is_huffman_used = 0;
    if (setjmp(decoder->on_error)) {
        jpeg_abort_decompress(info);
        return 0;
    }
    open_scale(decoder, data, num_bytes, view);
    add_view(decoder, view, out);
    start_scale(decoder);
    decoder->is_huffman_used = huffman != NULL
        && take_over(huffman, info, decoder->first_column, decoder->end_column);
    show_rows(decoder, decoder->end_row);
    close_scale(decoder);
    return 1;
}

static int decode(
    Decoder *decoder, RowsMode mode, const uint8_t *data, size_t num_bytes, const View *view, uint8_t *out
) {
    if (decoder->huffman != NULL) {
        decoder->huffman->rows.mode = mode;
    }
    return try_view(decoder, decoder->huffman, data, num_bytes, view, out)
        /* libjpeg-turbo alone decides whether the file is damaged, and in which words. */
        || (decoder->is_huffman_used && try_view(decoder, NULL, data, num_bytes, view, out));
}

int decode_view(Decoder *decoder, const uint8_t *data, size_t num_bytes, const View *view, uint8_t *out) {
    return decode(decoder, NO_ROWS, data, num_bytes, view, out);
}

int decode_views(
    Decoder *decoder, const uint8_t *data, size_t num_bytes, const View *views, uint8_t *const *outs, size_t count
) {
    Huffman *huffman = decoder->huffman;
    if (huffman != NULL) {
        huffman->rows.mode = NO_ROWS;
        keep(huffman);
    }
    size_t made = 0;
    while (made < count && try_view(decoder, huffman, data, num_bytes, &views[made], outs[made])) {
        made++;
    }
    if (huffman != NULL) {
        forget(huffman);
    }
    return made == count;
}

int decode_view_with_rows(
    Decoder *decoder, const uint8_t *data, size_t num_bytes, const View *view, const uint8_t *entry,
    size_t entry_bytes, uint8_t *out
) {
    Huffman *huffman = decoder->huffman;
    if (huffman == NULL) {
        return decode_view(decoder, data, num_bytes, view, out);
    }
    Rows *rows = &huffman->rows;
    rows->entry_bytes = 0;
    if (read_rows(rows, entry, entry_bytes, data, num_bytes)) {
        rows->mode = USE_ROWS;
        if (try_view(decoder, huffman, data, num_bytes, view, out)) {
            return 1;
        }
    }
    int is_made = decode(decoder, NOTE_ROWS, data, num_bytes, view, out);
    if (is_made && decoder->is_huffman_used && rows->mode == NOTE_ROWS && skip_rest(huffman)) {
        make_entry(rows, data, num_bytes);
    }
    return is_made;
}

int is_view(const View *view) {
    const int sides[] = {view->stored_height, view->stored_width, view->height, view->width, view->full_height,
                         view->full_width, view->out_height, view->out_width};
    for (size_t number = 0; number < sizeof sides / sizeof *sides; number++) {
        if (sides[number] < 1 || sides[number] > MAX_SIDE) {
            return 0;
        }
    }
    int denominator = view->denominator;
    return (denominator == 1 || denominator == 2 || denominator == 4 || denominator == 8)
        && view->top >= 0 && view->left >= 0 && view->out_top >= 0 && view->out_left >= 0
        && view->out_height <= view->full_height && view->out_top <= view->full_height - view->out_height
        && view->out_width <= view->full_width && view->out_left <= view->full_width - view->out_width;
}

/* Decode a photo of a chunk. */

#include <stdlib.h>
#include <string.h>

#include "_huffman.h"
#include "_photos.h"

enum { ALWAYS_PLAUSIBLE_PIXELS = 1 << 24 };

/* `Limits.check_bytes` and `Limits.check_size`. */
static int is_within_limits(const Photos *photos, const Header *header, int64_t num_bytes) {
    int64_t num_pixels = (int64_t)header->height * header->width;
    return num_bytes <= photos->max_bytes && num_pixels > 0 && num_pixels <= photos->max_pixels
        && (num_pixels <= ALWAYS_PLAUSIBLE_PIXELS || num_pixels / num_bytes < photos->max_pixels_per_byte
            || (num_pixels / num_bytes == photos->max_pixels_per_byte && num_pixels % num_bytes == 0));
}

/* Whether bytes like the start of a scan occur at most `max_scans` times. Python then searches no further either. */
static int has_few_scans(const uint8_t *data, int64_t num_bytes, int64_t max_scans) {
    const uint8_t *end = data + num_bytes;
    for (const uint8_t *at = data; (at = memchr(at, 0xFF, (size_t)(end - at))) != NULL; at++) {
        max_scans -= at + 1 < end && at[1] == 0xDA;
    }
    return max_scans >= 0;
}

int open_photo(const Photos *photos, const uint8_t *data, int64_t num_bytes, Header *header) {
    if (!read_header(data, (size_t)num_bytes, header) || !is_within_limits(photos, header, num_bytes)
        || (header->has_restarts && !has_few_scans(data, num_bytes, photos->max_scans))) {
        return 0;
    }
    if (!photos->is_upright) {
        header->orientation = 1;
    }
    return 1;
}

int choose_view(const Photos *photos, const Header *header, const double *draws, View *view, Shown *shown) {
    int is_turned = header->orientation >= 5;
    int height = is_turned ? header->width : header->height, width = is_turned ? header->height : header->width;
    int is_chosen = photos->random == NULL
        ? center_shown(photos->short_side, height, width, photos->size, shown)
        : random_shown(photos->random, height, width, draws, photos->size, shown);
    if (!is_chosen) {
        return 0;
    }
    stored_view(header, shown, view);
    view->antialias = photos->antialias;
    return is_view(view);
}

void turn(const uint8_t *stored, int orientation, int mirror, const int size[2], uint8_t *out) {
    int is_upside_down = orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8;
    int is_reversed = (orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7) != mirror;
    size_t down = orientation >= 5 ? 3 : 3 * (size_t)size[1], right = orientation >= 5 ? 3 * (size_t)size[0] : 3;
    for (int y = 0; y < size[0]; y++) {
        const uint8_t *row = stored + down * (size_t)(is_upside_down ? size[0] - 1 - y : y);
        for (int x = 0; x < size[1]; x++, out += 3) {
            memcpy(out, row + right * (size_t)(is_reversed ? size[1] - 1 - x : x), 3);
        }
    }
}

void note_photo(const Photos *photos, size_t number) {
    if (photos->next != NULL) {
        __atomic_store_n(photos->next, photos->first + (int64_t)number, __ATOMIC_RELAXED);
    }
}

const uint8_t *file_of(const Photos *photos, size_t number) {
    int64_t start = photos->starts[number], num_bytes = photos->lengths[number];
    if (start < 0 || num_bytes <= 0 || (uint64_t)start > photos->area_bytes
        || (uint64_t)num_bytes > photos->area_bytes - (uint64_t)start) {
        return NULL;
    }
    return photos->area + start;
}

int has_entry(const Photos *photos, size_t number) {
    return photos->entries != NULL && photos->entry_bounds[2 * number + 1] >= 0;
}

/* Decode with the photo's entry of the row index, if there is one; return as `is_made`. */
static int decode_with_entry(
    Decoder *decoder, const Photos *photos, size_t number, const uint8_t *data, size_t num_bytes, const View *view,
    uint8_t *out
) {
    if (!has_entry(photos, number)) {
        return decode_view(decoder, data, num_bytes, view, out);
    }
    int64_t start = photos->entry_bounds[2 * number], entry_bytes = photos->entry_bounds[2 * number + 1];
    if (entry_bytes == 0 || start < 0 || (uint64_t)start > photos->entries_bytes
        || (uint64_t)entry_bytes > photos->entries_bytes - (uint64_t)start) {
        return 0;
    }
    const uint8_t *entry = photos->entries + start;
    int is_made = decode_view_with_rows(decoder, data, num_bytes, view, entry, (size_t)entry_bytes, out);
    return is_made && decoder->huffman != NULL && decoder->huffman->rows.entry_bytes != 0 ? 2 : is_made;
}

void tell_geometry(const Header *header, const Shown *shown, int64_t *geometry) {
    int is_turned = header->orientation >= 5;
    const int64_t numbers[NUM_GEOMETRY] = {
        is_turned ? header->width : header->height, is_turned ? header->height : header->width,
        shown->box.top, shown->box.left, shown->box.height, shown->box.width, shown->full_height, shown->full_width,
        shown->window.top, shown->window.left, shown->window.height, shown->window.width, shown->mirror};
    memcpy(geometry, numbers, sizeof numbers);
}

int decode_photo(Decoder *decoder, const Photos *photos, size_t number, uint8_t *turned) {
    const uint8_t *data = file_of(photos, number);
    int64_t num_bytes = photos->lengths[number];
    uint8_t *out = photos->out + number * (size_t)photos->size[0] * (size_t)photos->size[1] * 3;
    Header header;
    Shown shown;
    View view;
    double draws[NUM_DRAWS];
    if (data == NULL || !open_photo(photos, data, num_bytes, &header)) {
        return 0;
    }
    if (photos->random != NULL) {
        draw_doubles(photos->key, (uint64_t)photos->sample_ids[number], draws, NUM_DRAWS);
    }
    if (!choose_view(photos, &header, draws, &view, &shown)) {
        return 0;
    }
    if (photos->geometries != NULL) {
        tell_geometry(&header, &shown, photos->geometries + number * NUM_GEOMETRY);
    }
    if (header.orientation == 1) {
        return decode_with_entry(decoder, photos, number, data, (size_t)num_bytes, &view, out);
    }
    int is_made = decode_with_entry(decoder, photos, number, data, (size_t)num_bytes, &view, turned);
    if (is_made) {
        turn(turned, header.orientation, shown.mirror, photos->size, out);
    }
    return is_made;
}

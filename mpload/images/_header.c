/* A JPEG's header, the segments before its first scan. */

#include <string.h>

#include "_photos.h"

enum {
    MAX_SEGMENTS = 4096,
    FRAME = 0xC0,           /* baseline */
    EXTENDED_FRAME = 0xC1,
    SCAN = 0xDA,
    RESTART_INTERVAL = 0xDD,
    EXIF = 0xE1,
    ORIENTATION_TAG = 0x0112,
    SHORT_KIND = 3,         /* a TIFF entry's type: 16 bits */
    LONG_KIND = 4,          /* 32 bits */
    ENTRY_BYTES = 12
};

static unsigned two_bytes(const uint8_t *bytes) {
    return (unsigned)bytes[0] << 8 | bytes[1];
}

/* The number in up to `count` bytes from `at` on; bytes beyond the end are left out. */
static uint64_t tiff_number(const uint8_t *tiff, size_t num_bytes, uint64_t at, size_t count) {
    int is_little = tiff[0] == 'I';
    uint64_t number = 0;
    for (size_t place = 0; place < count && at + place < num_bytes; place++) {
        uint64_t byte = tiff[at + place];
        number = is_little ? number | byte << 8 * place : number << 8 | byte;
    }
    return number;
}

static int tiff_orientation(const uint8_t *tiff, size_t num_bytes) {
    if (num_bytes < 2 || (memcmp(tiff, "II", 2) != 0 && memcmp(tiff, "MM", 2) != 0)) {
        return 1;
    }
    uint64_t directory = tiff_number(tiff, num_bytes, 4, 4);
    uint64_t end = directory + 2 + ENTRY_BYTES * tiff_number(tiff, num_bytes, directory, 2);
    for (uint64_t entry = directory + 2; entry < end && entry + ENTRY_BYTES <= num_bytes; entry += ENTRY_BYTES) {
        uint64_t kind = tiff_number(tiff, num_bytes, entry + 2, 2);
        if (tiff_number(tiff, num_bytes, entry, 2) == ORIENTATION_TAG && (kind == SHORT_KIND || kind == LONG_KIND)) {
            uint64_t orientation = tiff_number(tiff, num_bytes, entry + 8, kind == SHORT_KIND ? 2 : 4);
            return 1 <= orientation && orientation <= 8 ? (int)orientation : 1;
        }
    }
    return 1;
}

static int exif_orientation(const uint8_t *data, size_t num_bytes, size_t segment, size_t length) {
    size_t end = segment + 2 + length, tiff = segment + 10;
    end = end < num_bytes ? end : num_bytes;
    if (memcmp(data + segment + 4, "Exif\0", 6) != 0) {
        return 0;
    }
    return tiff_orientation(data + tiff, end > tiff ? end - tiff : 0);
}

/* Whether simplejpeg, which Python asks if there are restart markers, has a name for the subsampling. */
static int is_sampling_usual(const uint8_t *frame) {
    unsigned first = frame[11];
    return frame[9] == 1
        || ((first == 0x11 || first == 0x21 || first == 0x12 || first == 0x22 || first == 0x41) && frame[14] == 0x11
            && frame[17] == 0x11);
}

int read_header(const uint8_t *data, size_t num_bytes, Header *header) {
    size_t at = 2, frame = 0;
    int orientation = 0, has_restarts = 0;
    if (num_bytes < 12 || memcmp(data, "\xFF\xD8\xFF", 3) != 0) {
        return 0;
    }
    for (int segment = 0; segment < MAX_SEGMENTS && at <= num_bytes - 10; segment++) {
        if (data[at] != 0xFF) {
            return 0;
        }
        uint8_t marker = data[at + 1];
        if (marker == 0xFF) {  /* fill bytes, perhaps many */
            while (at + 1 < num_bytes && data[at + 1] == 0xFF) {
                at++;
            }
            continue;
        }
        size_t length = two_bytes(data + at + 2);
        if (marker == SCAN) {
            if (frame == 0 || data[at + 4] != data[frame + 9] || (data[frame + 9] != 1 && data[frame + 9] != 3)) {
                return 0;
            }
            if (has_restarts && (num_bytes - frame < 18 || !is_sampling_usual(data + frame))) {
                return 0;
            }
            header->has_restarts = has_restarts;
            header->height = (int)two_bytes(data + frame + 5);
            header->width = (int)two_bytes(data + frame + 7);
            header->orientation = orientation == 0 ? 1 : orientation;
            return 1;
        }
        if (marker == RESTART_INTERVAL) {
            has_restarts = 1;
        } else if (marker == FRAME || marker == EXTENDED_FRAME) {
            frame = at;
        } else if (marker == EXIF && orientation == 0) {
            orientation = exif_orientation(data, num_bytes, at, length);
        }
        at += 2 + length;
    }
    return 0;
}

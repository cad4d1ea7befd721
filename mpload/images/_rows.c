/* Entries with the starts of a photo's rows; see _rows.h. */

#include <stdlib.h>
#include <string.h>

#include "_rows.h"

enum { CHECK_BYTES = 8, MAX_NUMBER_BYTES = 10 };

static const uint64_t PRIMES[] = {
    0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5};

static inline uint64_t turned(uint64_t value, int bits) {
    return value << bits | value >> (64 - bits);
}

/* The next bytes as a little-endian number. */
static inline uint64_t load(const uint8_t *bytes, int num_bytes) {
    uint64_t value = 0;
    for (int number = 0; number < num_bytes; number++) {
        value |= (uint64_t)bytes[number] << 8 * number;
    }
    return value;
}

static inline uint64_t mixed(uint64_t lane, uint64_t value) {
    return turned(lane + value * PRIMES[1], 31) * PRIMES[0];
}

/* XXH64 (Collet 2012): about 5 us for 100 KB. */
static uint64_t hash(const uint8_t *next, size_t num_bytes, uint64_t seed) {
    const uint8_t *end = next + num_bytes;
    uint64_t result = seed + PRIMES[4];
    if (num_bytes >= 32) {
        uint64_t a = seed + PRIMES[0] + PRIMES[1], b = seed + PRIMES[1], c = seed, d = seed - PRIMES[0];
        for (; end - next >= 32; next += 32) {
            a = mixed(a, load(next, 8));
            b = mixed(b, load(next + 8, 8));
            c = mixed(c, load(next + 16, 8));
            d = mixed(d, load(next + 24, 8));
        }
        result = turned(a, 1) + turned(b, 7) + turned(c, 12) + turned(d, 18);
        const uint64_t lanes[] = {a, b, c, d};
        for (int lane = 0; lane < 4; lane++) {
            result = (result ^ mixed(0, lanes[lane])) * PRIMES[0] + PRIMES[3];
        }
    }
    result += num_bytes;
    for (; end - next >= 8; next += 8) {
        result = turned(result ^ mixed(0, load(next, 8)), 27) * PRIMES[0] + PRIMES[3];
    }
    if (end - next >= 4) {
        result = turned(result ^ load(next, 4) * PRIMES[0], 23) * PRIMES[1] + PRIMES[2];
        next += 4;
    }
    for (; next < end; next++) {
        result = turned(result ^ *next * PRIMES[4], 11) * PRIMES[0];
    }
    result = (result ^ result >> 33) * PRIMES[1];
    result = (result ^ result >> 29) * PRIMES[2];
    return result ^ result >> 32;
}

static uint64_t check_of(const uint8_t *numbers, size_t num_bytes, const uint8_t *data, size_t data_bytes) {
    return hash(numbers, num_bytes, hash(data, data_bytes, 0));
}

static int reserve(void **buffer, size_t *held_bytes, size_t num_bytes) {
    if (num_bytes > *held_bytes) {
        void *larger = realloc(*buffer, num_bytes);
        if (larger == NULL) {
            return 0;
        }
        *buffer = larger;
        *held_bytes = num_bytes;
    }
    return 1;
}

int reserve_rows(Rows *rows, unsigned num_rows, unsigned num_components) {
    if (num_rows < 1 || num_rows > MAX_ROWS || num_components < 1 || num_components > MAX_ROW_COMPONENTS
        || !reserve((void **)&rows->starts, &rows->starts_held, num_rows * sizeof *rows->starts)) {
        return 0;
    }
    rows->num_rows = num_rows;
    rows->num_components = num_components;
    memset(&rows->starts[0], 0, sizeof rows->starts[0]);
    return 1;
}

static uint64_t take_number(const uint8_t **next, const uint8_t *end) {
    uint64_t value = 0;
    for (int shift = 0; *next < end && shift < 64; shift += 7) {
        uint8_t byte = *(*next)++;
        value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) {
            break;
        }
    }
    return value;
}

static uint8_t *put_number(uint8_t *next, uint64_t value) {
    for (; value >= 128; value >>= 7) {
        *next++ = (uint8_t)(value | 128);
    }
    *next++ = (uint8_t)value;
    return next;
}

int read_rows(Rows *rows, const uint8_t *entry, size_t entry_bytes, const uint8_t *data, size_t num_bytes) {
    if (entry_bytes <= CHECK_BYTES) {
        return 0;
    }
    const uint8_t *next = entry + CHECK_BYTES, *end = entry + entry_bytes;
    if (load(entry, CHECK_BYTES) != check_of(next, (size_t)(end - next), data, num_bytes)) {
        return 0;
    }
    uint64_t num_rows = take_number(&next, end), num_components = take_number(&next, end);
    if (num_rows > MAX_ROWS || num_components > MAX_ROW_COMPONENTS
        || !reserve_rows(rows, (unsigned)num_rows, (unsigned)num_components)) {
        return 0;
    }
    for (unsigned row = 1; row < num_rows; row++) {
        RowStart *start = &rows->starts[row];
        *start = start[-1];
        start->position += take_number(&next, end);
        for (unsigned component = 0; component < num_components; component++) {
            uint32_t number = (uint32_t)take_number(&next, end);
            start->predictors[component] += number >> 1 ^ (0 - (number & 1));
        }
    }
    return next == end;
}

void make_entry(Rows *rows, const uint8_t *data, size_t num_bytes) {
    size_t numbers = 2 + (size_t)rows->num_rows * (1 + rows->num_components);
    if (!reserve((void **)&rows->entry, &rows->entry_held, CHECK_BYTES + numbers * MAX_NUMBER_BYTES)) {
        return;
    }
    uint8_t *first = rows->entry + CHECK_BYTES;
    uint8_t *next = put_number(put_number(first, rows->num_rows), rows->num_components);
    for (unsigned row = 1; row < rows->num_rows; row++) {
        const RowStart *start = &rows->starts[row];
        next = put_number(next, start->position - start[-1].position);
        for (unsigned component = 0; component < rows->num_components; component++) {
            uint32_t change = start->predictors[component] - start[-1].predictors[component];
            next = put_number(next, (uint32_t)(change << 1 ^ (0 - (change >> 31))));
        }
    }
    uint64_t check = check_of(first, (size_t)(next - first), data, num_bytes);
    for (int number = 0; number < CHECK_BYTES; number++) {
        rows->entry[number] = (uint8_t)(check >> 8 * number);
    }
    rows->entry_bytes = (size_t)(next - rows->entry);
}

void free_rows(Rows *rows) {
    free(rows->starts);
    free(rows->entry);
}

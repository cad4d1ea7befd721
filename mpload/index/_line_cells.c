/* Cut lines into cells and parse them. Unusual lines are left to Python, which parses them or reports the fault. */

#include <string.h>

#include "_lines.h"

enum { MAX_DIGITS = 19 };

/* A line without escapes (`\`), NUL (an error) and CR (an error, or cut off). */
static int is_simple(const char *line, int64_t num_bytes) {
    unsigned char found = 0;
    for (int64_t place = 0; place < num_bytes; place++) {
        found |= (line[place] == '\\') | (line[place] == '\0') | (line[place] == '\r');
    }
    return !found;
}

static int split(const char *data, int64_t start, int64_t end, size_t num_columns, int64_t *cells) {
    if (!is_simple(data + start, end - start)) {
        return 0;
    }
    for (size_t column = 0; column < num_columns; column++) {
        const char *tab = memchr(data + start, '\t', (size_t)(end - start));
        if ((tab == NULL) != (column + 1 == num_columns)) {
            return 0;
        }
        cells[2 * column] = start;
        cells[2 * column + 1] = tab == NULL ? end : tab - data;
        start = cells[2 * column + 1] + 1;
    }
    return 1;
}

void split_lines(const char *data, int64_t num_bytes, const int64_t *bounds, size_t num_lines, size_t num_columns,
                 int64_t *cells) {
    for (size_t place = 0; place < num_lines; place++) {
        int64_t start = bounds[2 * place], end = bounds[2 * place + 1], *row = &cells[2 * num_columns * place];
        if (start < 0 || end < start || end > num_bytes || !split(data, start, end, num_columns, row)) {
            memset(row, 0xFF, 2 * num_columns * sizeof *row);  /* -1 */
        }
    }
}

/* Parse 1 to 19 digits. Their value is below 10**19, so it fits. Return where they end; NULL if it is another number. */
static const char *parse_digits(const char *text, const char *end, uint64_t *value) {
    const char *at = text;
    *value = 0;
    while (at < end && at - text <= MAX_DIGITS && *at >= '0' && *at <= '9') {
        *value = *value * 10 + (uint64_t)(*at++ - '0');
    }
    return at == text || at - text > MAX_DIGITS ? NULL : at;
}

int parse_integer(const char *text, const char *end, int64_t *value) {
    int is_negative = text < end && *text == '-';
    uint64_t size;
    if (parse_digits(text + is_negative, end, &size) != end || size > (uint64_t)INT64_MAX + (uint64_t)is_negative) {
        return 0;
    }
    *value = (int64_t)(is_negative ? 0 - size : size);
    return 1;
}

int parse_span(const char *text, const char *end, int64_t *offset, int64_t *length, const char **path) {
    uint64_t first, size;
    const char *at = parse_digits(text, end, &first);
    if (at == NULL || at == end || *at != '+' || (at = parse_digits(at + 1, end, &size)) == NULL || end - at < 2
        || *at != '@' || first > INT64_MAX || size > INT64_MAX - first) {
        return 0;
    }
    *offset = (int64_t)first;
    *length = (int64_t)size;
    *path = at + 1;
    return 1;
}

/* Read lists of objects: see _scan.h. */

#include <math.h>
#include <string.h>

#include "_scan.h"

enum { MAX_DEPTH = 32, MAX_DIGITS = 300, MAX_POWER = 22 };

static const uint64_t MAX_EXACT = (uint64_t)1 << 53;  /* doubles hold all integers up to here */
static const double MAX_BOX = 1e9;
static const double powers[MAX_POWER + 1] = {
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20,
    1e21, 1e22};

typedef struct {
    const char *next, *end;
    double (*number)(const char *literal);
} Text;

static void skip_blanks(Text *text) {
    while (text->next < text->end
           && (*text->next == ' ' || *text->next == '\n' || *text->next == '\t' || *text->next == '\r')) {
        text->next++;
    }
}

/* Whether the next character, behind blanks, is this one; it is then taken. */
static int takes(Text *text, char wanted) {
    skip_blanks(text);
    if (text->next < text->end && *text->next == wanted) {
        text->next++;
        return 1;
    }
    return 0;
}

static int is_digit(const Text *text) {
    return text->next < text->end && *text->next >= '0' && *text->next <= '9';
}

/* Take digits; return how many there are. Their value is added to `value`, unless that has become too large. */
static int take_digits(Text *text, uint64_t *value) {
    int count = 0;
    for (; is_digit(text); text->next++, count++) {
        *value = *value > MAX_EXACT ? *value : 10 * *value + (uint64_t)(*text->next - '0');
    }
    return count;
}

/* Take a number as Python's json module does. */
static int take_number(Text *text, double *number) {
    const char *start = text->next;
    int is_negative = text->next < text->end && *text->next == '-', exponent = 0, is_int = 1;
    text->next += is_negative;
    uint64_t value = 0, power = 0;
    const char *first = text->next;
    int digits = take_digits(text, &value);
    if (digits == 0 || (digits > 1 && *first == '0')) {
        return 0;
    }
    if (text->next < text->end && *text->next == '.') {
        text->next++;
        exponent = -take_digits(text, &value);
        is_int = 0;
        if (exponent == 0) {
            return 0;
        }
    }
    if (text->next < text->end && (*text->next == 'e' || *text->next == 'E')) {
        text->next++;
        int is_down = text->next < text->end && *text->next == '-';
        text->next += is_down || (text->next < text->end && *text->next == '+');
        is_int = 0;
        if (take_digits(text, &power) == 0) {
            return 0;
        }
        power = power < 1000 ? power : 1000;
        exponent += is_down ? -(int)power : (int)power;
    }
    ptrdiff_t num_bytes = text->next - start;
    if (num_bytes > MAX_DIGITS) {
        return 0;
    }
    if (value <= MAX_EXACT && exponent >= -MAX_POWER && exponent <= MAX_POWER) {  /* one rounding, as strtod's */
        *number = exponent < 0 ? (double)value / powers[-exponent] : (double)value * powers[exponent];
        *number = is_negative && !(is_int && value == 0) ? -*number : *number;
        return 1;
    }
    *number = HUGE_VAL;  /* of no use, but legal where it is skipped */
    if (num_bytes < MAX_LITERAL_BYTES && !is_int) {
        char literal[MAX_LITERAL_BYTES];
        memcpy(literal, start, (size_t)num_bytes);
        literal[num_bytes] = 0;
        *number = text->number(literal);
    }
    return 1;
}

static int is_hex(char byte) {
    return (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'f') || (byte >= 'A' && byte <= 'F');
}

/* Take a string, whose quote was taken, of printable ASCII; `has_escapes` tells whether it has any. */
static int take_string(Text *text, const char **start, size_t *length, int *has_escapes) {
    *start = text->next;
    *has_escapes = 0;
    while (text->next < text->end) {
        char byte = *text->next++;
        if (byte == '"') {
            *length = (size_t)(text->next - 1 - *start);
            return 1;
        }
        if ((unsigned char)byte < ' ' || (unsigned char)byte >= 0x80) {
            return 0;
        }
        if (byte != '\\') {
            continue;
        }
        *has_escapes = 1;
        if (text->next == text->end) {
            return 0;
        }
        byte = *text->next++;
        if (byte == 'u') {
            for (int digit = 0; digit < 4; digit++) {
                if (text->next == text->end || !is_hex(*text->next++)) {
                    return 0;
                }
            }
        } else if (byte == 0 || strchr("\"\\/bfnrt", byte) == NULL) {
            return 0;
        }
    }
    return 0;
}

static int takes_word(Text *text, const char *word) {
    size_t length = strlen(word);
    if ((size_t)(text->end - text->next) < length || memcmp(text->next, word, length) != 0) {
        return 0;
    }
    text->next += length;
    return 1;
}

static int take_key(Text *text, const char **start, size_t *length, int *has_escapes) {
    return takes(text, '"') && take_string(text, start, length, has_escapes) && takes(text, ':');
}

static int skip_value(Text *text, int depth) {
    const char *start;
    size_t length;
    int has_escapes;
    double number;
    if (depth > MAX_DEPTH) {
        return 0;
    }
    if (takes(text, '"')) {
        return take_string(text, &start, &length, &has_escapes);
    }
    if (takes(text, '[')) {
        if (takes(text, ']')) {
            return 1;
        }
        do {
            if (!skip_value(text, depth + 1)) {
                return 0;
            }
        } while (takes(text, ','));
        return takes(text, ']');
    }
    if (takes(text, '{')) {
        if (takes(text, '}')) {
            return 1;
        }
        do {
            if (!take_key(text, &start, &length, &has_escapes) || !skip_value(text, depth + 1)) {
                return 0;
            }
        } while (takes(text, ','));
        return takes(text, '}');
    }
    return takes_word(text, "true") || takes_word(text, "false") || takes_word(text, "null")
        || take_number(text, &number);
}

static int take_box(Text *text, double *box) {
    for (int side = 0; side < BOX_NUMBERS; side++) {
        if (!takes(text, side ? ',' : '[')) {
            return 0;
        }
        skip_blanks(text);
        if (!take_number(text, &box[side]) || !(fabs(box[side]) <= MAX_BOX)) {
            return 0;
        }
    }
    return takes(text, ']');
}

static int is_name(const char *name, const char *start, size_t length) {
    return strlen(name) == length && memcmp(name, start, length) == 0;
}

/* Find the value that a key names. Return its number, and which of its names it is; -1 if there is none. */
static int find_value(const Wanted *wanted, const char *start, size_t length, int *which) {
    for (int value = 0; value < wanted->num_values; value++) {
        for (*which = 0; *which < wanted->values[value].count; ++*which) {
            if (is_name(wanted->values[value].names[*which], start, length)) {
                return value;
            }
        }
    }
    return -1;
}

/* Take an object, whose brace was taken. `chosen` are the names of its values: any of the first object, if that is
   empty, else the same for all. */
static int take_object(Text *text, const Wanted *wanted, int *chosen, int is_first, int64_t object) {
    double *box = wanted->boxes + BOX_NUMBERS * object, *numbers = wanted->numbers + wanted->num_values * object;
    int has_box = 0, has_value[MAX_VALUES] = {0}, which, has_escapes;
    const char *key;
    size_t length;
    do {
        if (!take_key(text, &key, &length, &has_escapes) || has_escapes || is_name("boxes", key, length)) {
            return 0;
        }
        int value = find_value(wanted, key, length, &which);
        if (is_name("bbox", key, length)) {
            if (has_box++ || value >= 0 || !take_box(text, box)) {
                return 0;
            }
        } else if (value < 0 || (!is_first && which != chosen[value])) {
            if (!skip_value(text, 0)) {
                return 0;
            }
        } else {
            if (has_value[value]++) {
                return 0;  /* it has two names, or is given twice */
            }
            chosen[value] = which;
            skip_blanks(text);
            double *number = &numbers[value];
            if (!take_number(text, number) || !(fabs(*number) <= (double)MAX_EXACT)
                || (wanted->values[value].is_int && *number != trunc(*number))) {
                return 0;
            }
        }
    } while (takes(text, ','));
    for (int value = 0; value < wanted->num_values; value++) {
        has_box &= has_value[value];
    }
    return takes(text, '}') && has_box;
}

int64_t scan_objects(const Wanted *wanted, const char *data, size_t num_bytes, int64_t first) {
    Text text = {data, data + num_bytes, wanted->number};
    int chosen[MAX_VALUES] = {0};
    int64_t count = 0;
    if (!takes(&text, '[')) {
        return -1;
    }
    if (!takes(&text, ']')) {
        do {
            if (!takes(&text, '{') || first + count >= wanted->max_objects
                || !take_object(&text, wanted, chosen, count == 0, first + count)) {
                return -1;
            }
            count++;
        } while (takes(&text, ','));
        if (!takes(&text, ']')) {
            return -1;
        }
    }
    skip_blanks(&text);
    return text.next == text.end ? count : -1;
}

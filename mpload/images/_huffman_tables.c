/* Lookup tables for Huffman codes, built from the tables in a JPEG.

   JPEG's codes are canonical: a file gives the number of codes of each length, and each code is the one before it plus
   1, with zeros appended where the length grows. So the codes of one length are consecutive numbers, and the prefixes
   that begin with a code are consecutive too. */

#include <string.h>

#include "_huffman.h"

/* One AC symbol with its value. `bits` is 0 if the prefix does not hold all of it; `advance` is as in Pair. */
typedef struct {
    int16_t value;
    uint8_t bits, advance;
} Single;

Code find_long_code(const Codes *codes, unsigned prefix) {
    for (int length = CODE_BITS + 1; length <= MAX_CODE_BITS; length++) {
        if (prefix < codes->limits[length]) {
            int place = (int)(prefix >> (MAX_CODE_BITS - length)) + codes->offsets[length];
            return (Code){(uint8_t)length, codes->symbols[place]};
        }
    }
    return (Code){0, 0};
}

int is_legal(const JHUFF_TBL *table, int max_symbol) {
    int place = 0;
    unsigned code = 0;
    for (int length = 1; length <= MAX_CODE_BITS; length++, code <<= 1) {
        code += table->bits[length];  /* the last code of this length plus 1 */
        for (int number = 0; number < table->bits[length]; number++, place++) {
            if (place == 256 || table->huffval[place] > max_symbol) {
                return 0;
            }
        }
        if (code > 1U << length) {
            return 0;
        }
    }
    return 1;
}

static int is_same(const Codes *codes, const JHUFF_TBL *from) {
    size_t num_codes = 0;
    for (int length = 1; length <= MAX_CODE_BITS; length++) {
        num_codes += from->bits[length];
    }
    return memcmp(codes->counts, from->bits, sizeof codes->counts) == 0
        && memcmp(codes->symbols, from->huffval, num_codes) == 0;
}

int is_prepared(const Codes *codes, const JHUFF_TBL *from) {
    return codes->is_filled && is_same(codes, from);
}

static void note(Codes *codes, const JHUFF_TBL *from) {
    memcpy(codes->counts, from->bits, sizeof codes->counts);
    memcpy(codes->symbols, from->huffval, sizeof codes->symbols);
    codes->is_filled = 0;
}

static void fill_codes(Codes *codes) {
    memset(codes->prefixes, 0, sizeof codes->prefixes);
    unsigned code = 0;
    int place = 0;
    for (int length = 1; length <= MAX_CODE_BITS; length++, code <<= 1) {
        codes->offsets[length] = place - (int)code;
        for (int number = 0; number < codes->counts[length]; number++, code++, place++) {
            int rest = CODE_BITS - length;
            for (unsigned prefix = 0; rest >= 0 && prefix < 1U << rest; prefix++) {
                codes->prefixes[(code << rest) + prefix] = (Code){(uint8_t)length, codes->symbols[place]};
            }
        }
        codes->limits[length] = code << (MAX_CODE_BITS - length);
    }
    codes->is_filled = 1;
}

void prepare_dc_table(Codes *codes, const JHUFF_TBL *from) {
    if (!is_prepared(codes, from)) {
        note(codes, from);
        fill_codes(codes);
    }
}

/* The `advance` of a symbol, as in Pair. */
static int advance_of(int symbol) {
    int run = symbol >> 4, size = symbol & 15;
    return size != 0 || run == 15 ? run + 1 : 1 + ENDS_BLOCK;
}

/* Fill [1 << PAIR_BITS] singles in order: by code, then by value, then by the bits that follow. */
static void fill_singles(const Codes *codes, Single *singles) {
    Single *next = singles;
    int place = 0;
    for (int length = 1; length <= PAIR_BITS; length++) {
        for (int number = 0; number < codes->counts[length]; number++, place++) {
            int symbol = codes->symbols[place], size = symbol & 15, rest = PAIR_BITS - length - size;
            if (rest < 0) {  /* the prefix has no room for the value */
                next += 1 << (PAIR_BITS - length);
                continue;
            }
            for (int bits = 0; bits < 1 << size; bits++) {
                int is_negative = bits < 1 << size >> 1;
                Single single = {
                    (int16_t)(is_negative ? bits - (1 << size) + 1 : bits), (uint8_t)(length + size),
                    (uint8_t)advance_of(symbol)};
                for (Single *end = next + (1 << rest); next < end; next++) {
                    *next = single;
                }
            }
        }
    }
}

/* The single after the first `used` bits of a prefix. */
static Single single_after(const Single *singles, int prefix, int used) {
    Single single = singles[prefix << used & ((1 << PAIR_BITS) - 1)];
    return single.bits <= PAIR_BITS - used ? single : (Single){0, 0, 0};
}

static void fill_pairs(AcTable *table) {
    Single singles[1 << PAIR_BITS];
    memset(singles, 0, sizeof singles);
    fill_singles(&table->codes, singles);
    for (int prefix = 0; prefix < 1 << PAIR_BITS; prefix++) {
        Single single = singles[prefix];
        uint8_t place = single.advance & ADVANCE_MASK;
        Pair pair = {{single.value, single.value}, {place, place}, single.bits, single.advance};
        if (single.bits == 0) {
            pair.advance = NO_ADVANCE;
        }
        for (int more = 0; more < 2 && single.bits != 0 && !(pair.advance & ENDS_BLOCK); more++) {
            single = single_after(singles, prefix, pair.bits);
            if (single.bits == 0 || (more == 1 && !(single.advance & ENDS_BLOCK))) {
                break;  /* an entry holds two values; only the end of the block may follow */
            }
            pair.bits += single.bits;
            pair.advance += single.advance;
            if (!(single.advance & ENDS_BLOCK)) {
                pair.values[1] = single.value;
                pair.places[1] = pair.advance;
            }
        }
        table->pairs[prefix] = pair;
    }
}

/* The first symbol of a prefix of `num_bits`. */
static Skip first_skip(const Codes *codes, unsigned prefix, int num_bits) {
    Code code = find_code(codes, prefix << (MAX_CODE_BITS - num_bits));
    int used = code.bits + (code.symbol & 15);
    if (code.bits == 0 || code.bits > num_bits || used > MAX_SKIPPED_BITS) {
        return (Skip){0, NO_ADVANCE};
    }
    return (Skip){(uint8_t)used, (uint8_t)advance_of(code.symbol)};
}

/* Entries for prefixes of n bits begin at index 1 << n. The bits after a prefix's first symbol are a shorter prefix,
   whose entry exists already. */
static void fill_skips(AcTable *table) {
    Skip *skips = table->skips;
    skips[1] = (Skip){0, NO_ADVANCE};
    for (int num_bits = 1; num_bits <= SKIP_BITS; num_bits++) {
        for (unsigned prefix = 0; prefix < 1U << num_bits; prefix++) {
            Skip skip = first_skip(&table->codes, prefix, num_bits);
            int rest_bits = num_bits - skip.bits;
            if (skip.bits != 0 && rest_bits > 0 && !(skip.advance & ENDS_BLOCK)) {
                Skip rest = skips[1U << rest_bits | (prefix & ((1U << rest_bits) - 1))];
                if (skip.advance + (rest.advance & ADVANCE_MASK) <= LAST_PLACE
                    && skip.bits + rest.bits <= MAX_SKIPPED_BITS) {
                    skip.bits += rest.bits;
                    skip.advance += rest.advance;
                }
            }
            skips[1U << num_bits | prefix] = skip;
        }
    }
}

int prepare_ac_table(AcTable *table, const JHUFF_TBL *from, int at_once) {
    Codes *codes = &table->codes;
    if (!is_same(codes, from)) {
        note(codes, from);
        if (!at_once) {
            return 0;
        }
    }
    if (!codes->is_filled) {
        fill_codes(codes);
        fill_pairs(table);
        fill_skips(table);
    }
    return 1;
}

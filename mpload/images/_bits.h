/* The bits of a scan, and the symbols and values in them: for the files that decode Huffman codes. */

#ifndef MPLOAD_BITS_H
#define MPLOAD_BITS_H

#include "_huffman.h"

/* Compile a function twice: also with the instructions that shift by any number of bits in one cycle. The processor
   chooses when the module is loaded. Loaders of other C libraries than glibc do not know how. */
#if defined(__x86_64__) && defined(__GLIBC__)
#define WITH_BMI2_TOO __attribute__((target_clones("default", "bmi2")))
#else
#define WITH_BMI2_TOO
#endif

/* Tell the compiler to keep registers for the other case. */
#define UNLIKELY(condition) __builtin_expect((condition), 0)

enum {
    FILLED_BITS = 56,           /* minimum in the window after `fill` */
    PAIRS_A_FILL = FILLED_BITS / PAIR_BITS,     /* 5 */
    UNDEFINED_CODE = 1 << 30    /* `missing` after such a code, and at most: more than a window ever holds */
};

/* From a place to the index in a block, which is stored row by row. In damaged files a run may lead up to 15 places
   beyond the last; like libjpeg, this stores such a value in the last place. */
static const uint8_t IN_BLOCK[LAST_PLACE + 1 + 15] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,
    12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,
    35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
    58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
    63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63,
};

static inline uint64_t first_bits(const BitReader *bits, int count) {
    return bits->window >> (64 - count);
}

static inline void use_bits(BitReader *bits, int count) {
    bits->window <<= count;
    bits->count -= count;
}

/* `fill`, byte by byte. */
void fill_by_bytes(BitReader *bits);

/* Put as many whole bytes as fit into the window, up to at least FILLED_BITS, and return how many. This may also set some
   uncounted bits, from the byte that follows. The next fill sets them again, to the same values. */
static inline int put_bytes(BitReader *bits, uint64_t bytes) {
    int num_put = (63 - bits->count) >> 3;
    bits->window |= bytes >> bits->count;
    bits->count |= FILLED_BITS;
    return num_put;
}

/* Bring the window to at least FILLED_BITS. The encoder puts a zero after each data byte 0xFF, to tell it from a marker;
   that zero is dropped. */
static inline void fill(BitReader *bits) {
    if (bits->end - bits->next > 8) {
        const uint8_t *b = bits->next;
        uint64_t bytes = (uint64_t)b[0] << 56 | (uint64_t)b[1] << 48 | (uint64_t)b[2] << 40 | (uint64_t)b[3] << 32
            | (uint64_t)b[4] << 24 | (uint64_t)b[5] << 16 | (uint64_t)b[6] << 8 | b[7];
        uint64_t ones = 0x0101010101010101, tops = 0x8080808080808080, found = bytes & tops & (~bytes - ones);
        if (found == 0) {  /* no byte is 0xFF */
            bits->next += put_bytes(bits, bytes);
            return;
        }
        int at = __builtin_clzll(found) / 8;  /* of the first, or of a 0xFE before it */
        uint64_t behind = UINT64_MAX >> 8 * at >> 8;
        if (b[at + 1] == 0 && (found & behind) == 0 && b[8] != 0xFF) {  /* it is the only one, and its zero follows */
            int num_put = put_bytes(bits, (bytes & ~behind) | ((bytes << 8 | b[8]) & behind));
            bits->next += num_put + (num_put > at);
            return;
        }
    }
    BitReader copy = *bits;  /* only the copy's address is taken, so that `bits` can stay in registers */
    fill_by_bytes(&copy);
    *bits = copy;
}

/* The next `size` bits as a signed value: negative if the first bit is 0. A size of 0 gives 0. */
static inline int take_value(BitReader *bits, int size) {
    int value = (int)(bits->window >> 1 >> (63 - size));
    int is_negative = 1 - (int)(bits->window >> 63);
    use_bits(bits, size);
    return value - (((1 << size) - 1) & -is_negative);  /* no branch: signs cannot be predicted */
}

/* The next symbol. An undefined code counts as missing bits and gives 0, which ends an AC block. */
static inline int take_symbol(BitReader *bits, const Codes *codes) {
    Code code = find_code(codes, (unsigned)first_bits(bits, MAX_CODE_BITS));
    use_bits(bits, code.bits);
    bits->missing = code.bits != 0 ? bits->missing : UNDEFINED_CODE;
    return code.symbol;
}

/* One AC symbol and its value, for prefixes that the tables do not cover. `block` is NULL if the block is skipped.
   Returns the new place, or ENDS_BLOCK. */
static inline unsigned take_one(BitReader *bits, const Codes *codes, unsigned place, JCOEF *block) {
    fill(bits);
    int symbol = take_symbol(bits, codes), run = symbol >> 4, size = symbol & 15;
    if (size == 0) {
        return run == 15 ? place + 16 : ENDS_BLOCK;
    }
    place += (unsigned)run + 1;
    int value = take_value(bits, size);
    if (block != NULL) {
        block[IN_BLOCK[place]] = (JCOEF)value;
    }
    return place;
}

#endif

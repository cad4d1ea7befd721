/* JPEGs written again with the same coefficients, and thus the same pixels, as baseline JPEGs with given Huffman tables.

   Files are declined if anything makes libjpeg fail or warn, or if a decoder would guess at missing coefficients. */

#ifndef MPLOAD_COEFFICIENTS_H
#define MPLOAD_COEFFICIENTS_H

#include <stddef.h>
#include <stdint.h>

enum { NUM_KINDS = 4, NUM_SYMBOLS = 256 };

/* How often the symbols occur that baseline scans consist of: [2 * is_chroma + is_ac][symbol]. */
typedef int64_t Counts[NUM_KINDS][NUM_SYMBOLS];

/* The table of one kind, as in a JPEG. */
typedef struct {
    uint8_t counts[16];         /* [length - 1] number of codes of that length */
    uint8_t symbols[NUM_SYMBOLS];
} Table;

/* Read four tables, in the order of `Counts`, from the contents of a JPEG's DHT segment; return 0 if it holds others, or
   symbols that baseline JPEGs do not have. Whether the codes are legal is for libjpeg to judge. */
int read_tables(const uint8_t *segment, size_t num_bytes, Table tables[NUM_KINDS]);

/* Add a JPEG's symbols; return 0, and add nothing, if the file is declined. */
int count_symbols(const uint8_t *data, size_t num_bytes, Counts counts);

/* Write a JPEG into `out`; return its size, or 0 if the file is declined or the result does not fit. */
size_t rewrite(const uint8_t *data, size_t num_bytes, const Table tables[NUM_KINDS], uint8_t *out, size_t out_bytes);

#endif

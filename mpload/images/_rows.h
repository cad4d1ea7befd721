/* Where the rows of MCUs of a JPEG begin in its scan, so that a crop can be decoded from its first row on.

   The starts are found while the photo is decoded once, and kept outside of this module as an *entry*: 8 bytes of
   checksum, then the number of rows, the number of components and, for each row but the first, the differences from the
   row before: of the position, and of the predictor of every component. All numbers have 7 bits a byte, the lowest bits
   first; the top bit says that more follow. Signed numbers are stored as 0, -1, 1, -2, 2 ...

   The checksum covers the entry and all bytes of the photo. So an entry that is damaged, or belongs to another photo or
   to another state of it, is not used. It does not keep out forgers: a forged entry can make wrong pixels, but nothing
   is read or written out of bounds. */

#ifndef MPLOAD_ROWS_H
#define MPLOAD_ROWS_H

#include <stddef.h>
#include <stdint.h>

enum {
    MAX_ROWS = 8192,            /* 65535 pixels / 8 */
    MAX_ROW_COMPONENTS = 4
};

typedef struct {
    uint64_t position;          /* in bits after the first byte of the scan, as stored: zeros after 0xFF count */
    uint32_t predictors[MAX_ROW_COMPONENTS];
} RowStart;

typedef enum {
    NO_ROWS,                    /* starts are neither used nor noted */
    NOTE_ROWS,
    USE_ROWS
} RowsMode;

typedef struct {
    RowsMode mode;
    unsigned num_rows, num_components;
    RowStart *starts;           /* [num_rows] */
    uint8_t *entry;             /* the entry that was made */
    size_t entry_bytes;         /* 0 if none was made */
    size_t starts_held, entry_held;     /* sizes of the allocations, in bytes */
} Rows;

/* Allocate the starts. Returns 0 if memory runs out or the numbers are out of range. */
int reserve_rows(Rows *rows, unsigned num_rows, unsigned num_components);

/* Fill in the starts from an entry of the photo `data`. Returns 0 if it is not one. */
int read_rows(Rows *rows, const uint8_t *entry, size_t entry_bytes, const uint8_t *data, size_t num_bytes);

/* Make the entry of the photo `data` from the starts. */
void make_entry(Rows *rows, const uint8_t *data, size_t num_bytes);

void free_rows(Rows *rows);

#endif

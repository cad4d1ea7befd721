/* Read many ranges of files into one area, without coming back to Python in between. */

#ifndef MPLOAD_READ_MANY_H
#define MPLOAD_READ_MANY_H

#include <stdint.h>

enum { BLOCK_BYTES = 1 << 16 };  /* of a map, which are loaded together */

/* An open shard, and its bytes if it is mapped. */
typedef struct {
    int file;
    const uint8_t *bytes;  /* NULL if it is not mapped */
    int64_t num_bytes;     /* 0 if it is not mapped */
    uint64_t changed_ns;   /* when the file had last been changed before it was mapped, modulo 2**64 */
    uint8_t *are_loaded;   /* [blocks]: whether the pages of each block were loaded */
} Shard;

typedef struct {
    const char *names;         /* the paths of the files, among other bytes */
    int64_t num_name_bytes;
    const int64_t *bounds;     /* [num_ranges][2]: start and end of each path in `names`; -1 for a range to decline */
    const int64_t *offsets;    /* [num_ranges] */
    const int64_t *lengths;    /* [num_ranges]; -1 for a whole file */
    const int64_t *numbers;    /* [num_ranges]: the number of each span's shard; -1 for a span to decline */
    const Shard *shards;
    int64_t num_shards;
    int64_t num_ranges;
    int folder;                /* descriptor of the folder that whole files are opened beneath */
    int64_t max_bytes;         /* of a range; a larger one is declined */
    uint8_t *area;
    int64_t area_bytes;
    int64_t step_bytes;        /* range i goes to `i * step_bytes`; 0: behind the previous one, on a multiple of 64 */
    int64_t slow_ns;           /* a read that takes longer is slow */
    int64_t max_slow;          /* stop after this many slow reads */
    volatile int64_t *at;      /* the number of the sample that is next is written here; NULL for nowhere */
    int64_t first;             /* number of the first sample */
    int64_t num_before;        /* ranges that came before these */
    int64_t num_samples;       /* range i belongs to the sample `first + (num_before + i) % num_samples` */
} ManyRanges;

typedef struct {
    int64_t *starts;  /* [num_ranges]: where each range starts in the area */
    int64_t *sizes;   /* [num_ranges]: its number of bytes; -1 if it was declined */
    int64_t num_done; /* smaller than num_ranges if the area was full, or after many slow reads */
    int64_t num_slow; /* copies that are timed together are all slow, or none of them */
    int64_t used_bytes;
} ManyRead;

/* Open a regular file below a folder, and get its size. Return -1 in every unusual case. */
int open_file(int folder, const char *path, int64_t *num_bytes);

/* Return whether a mapped shard is still the file that was mapped. */
int is_unchanged(const Shard *shard);

void read_many(const ManyRanges *ranges, ManyRead *result);

/* Number the distinct names, in the order in which they first occur, in `which` [n], and write the place of the first
   occurrence of each to `firsts` [max_distinct]. Further names than that, and bounds that are out of range, get -1.
   Return the number of distinct names. */
int64_t distinct_names(
    const char *names, int64_t num_name_bytes, const int64_t *bounds, int64_t n, int64_t max_distinct, int64_t *which,
    int64_t *firsts);

#endif

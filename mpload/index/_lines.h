/* The lines of many samples: found through the sidecar, read with few system calls, and cut into cells. */

#ifndef MPLOAD_LINES_H
#define MPLOAD_LINES_H

#include <stddef.h>
#include <stdint.h>

/* The text and the sidecar of an index: their descriptors, and where the sidecar holds the offsets of the lines. If both
   are mapped into memory, they are copied instead of read. */
typedef struct {
    int text, sidecar;
    const char *text_map, *sidecar_map;  /* NULL if they are not mapped */
    int64_t sidecar_bytes;               /* that are mapped */
    int64_t num_samples, first_bytes, stride_bytes, last_bytes;
    int64_t body_bytes, text_bytes;
    uint64_t text_mtime_ns;    /* modulo 2**64: times after 2262, which damaged clocks make, exceed int64 */
} Files;

typedef struct {
    int64_t sample_id, place;  /* place in the request */
    int64_t start, end;        /* in the text; the end is where the next line starts */
} Line;

typedef struct {
    int64_t offset, length;  /* in the text */
    int64_t at;              /* in the result */
    int is_missing;          /* from the page cache */
} Run;

typedef struct {
    Line *lines;  /* sorted by sample_id */
    Run *runs;
    size_t num_lines, num_runs;
    int64_t num_bytes;  /* size of the result */
    size_t num_missed;  /* reads that the page cache could not serve */
} Plan;

/* Each returns 0 if anything is unusual. Bounds are int64 [n, 2]: where each line starts and ends in the result. */
int plan_lines(const Files *files, const int64_t *sample_ids, size_t num_lines, int64_t *bounds, Plan *plan);
int read_lines(const Files *files, Plan *plan, char *result, int64_t *bounds);
void free_plan(Plan *plan);

/* Ask the kernel to load lines that will be read soon, without waiting; return how many reads the page cache could not
   serve. The text of a line can only be asked for when its row of the sidecar is there, so ask again later. */
size_t ask_for_lines(const Files *files, const int64_t *sample_ids, size_t num_lines);

/* Cells are int64 [n, num_columns, 2]: where each cell starts and ends in the data; -1 if the line is not simple. */
void split_lines(const char *data, int64_t num_bytes, const int64_t *bounds, size_t num_lines, size_t num_columns,
                 int64_t *cells);

/* Each returns whether the cell `text` to `end` was parsed. */
int parse_integer(const char *text, const char *end, int64_t *value);
int parse_span(const char *text, const char *end, int64_t *offset, int64_t *length, const char **path);

#endif

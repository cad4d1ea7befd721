/* Find the lines of samples and read them. Rows of the sidecar, and lines, that are near each other share a read.

   Lines of a mapped index are copied one by one. Otherwise, all reads are first tried from the page cache. The kernel
   is then asked to load the pages of the others, before any of them is waited for: the disk works on all of them at
   once. */

#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "_lines.h"

enum { IF_CACHED = 8 };  /* RWF_NOWAIT, which older headers lack */

typedef enum { TRY, WAIT } Pass;

enum {
    BATCH_BITS = 20,  /* a record batch of the sidecar has 2**20 rows */
    ROW_BYTES = 8,
    MAX_LINE_BYTES = 256 << 10,
    SPARE_BYTES = 2 << 10,  /* reading this many unneeded bytes costs about as much as another system call */
    MAX_ROWS = 2048,
    MAX_RUN_BYTES = 1 << 20,
    AHEAD = 8,  /* mapped lines that the processor loads ahead */
    MISSING = -1,
};

static int read_all(int file, void *to, int64_t num_bytes, int64_t offset) {
    char *at = to;
    while (num_bytes > 0) {
        ssize_t count = pread(file, at, (size_t)num_bytes, offset);
        if (count < 0 && errno == EINTR) {
            continue;
        }
        if (count <= 0) {
            return 0;
        }
        at += count;
        offset += count;
        num_bytes -= count;
    }
    return 1;
}

/* Copy bytes of the sidecar if it is mapped, otherwise read them. */
static int read_sidecar(const Files *files, void *to, int64_t num_bytes, int64_t offset) {
    if (files->sidecar_map == NULL) {
        return read_all(files->sidecar, to, num_bytes, offset);
    }
    if (offset < 0 || offset > files->sidecar_bytes - num_bytes) {
        return 0;
    }
    memcpy(to, files->sidecar_map + offset, (size_t)num_bytes);
    return 1;
}

/* Read bytes that are in the page cache. Otherwise ask the kernel to load `num_asked` bytes, and return 0 at once. */
static int read_cached(int file, void *to, int64_t num_bytes, int64_t offset, int64_t num_asked, size_t *num_missed) {
#ifdef SYS_preadv2
    struct iovec part = {to, (size_t)num_bytes};
    long count = syscall(SYS_preadv2, file, &part, 1L, (long)offset, (long)(offset >> 32), (long)IF_CACHED);
    if (count == num_bytes) {
        return 1;
    }
    *num_missed += count >= 0 || errno == EAGAIN;  /* other errors: this file system cannot tell */
    posix_fadvise(file, offset, num_asked, POSIX_FADV_WILLNEED);
#else
    (void)file, (void)to, (void)num_bytes, (void)offset, (void)num_asked, (void)num_missed;
#endif
    return 0;
}

static int is_unchanged(const Files *files) {
    struct stat facts;
    return fstat(files->text, &facts) == 0 && facts.st_size == files->text_bytes
        && (uint64_t)facts.st_mtim.tv_sec * 1000000000 + (uint64_t)facts.st_mtim.tv_nsec == files->text_mtime_ns;
}

static int compare(const void *a, const void *b) {
    int64_t left = ((const Line *)a)->sample_id, right = ((const Line *)b)->sample_id;
    return (left > right) - (left < right);
}

static int64_t batch_of(int64_t sample_id) {
    return sample_id >> BATCH_BITS;
}

static int64_t row_offset(const Files *files, int64_t sample_id) {
    uint64_t batch = (uint64_t)batch_of(sample_id), row = (uint64_t)sample_id & ((1 << BATCH_BITS) - 1);
    uint64_t rows = sample_id >> BATCH_BITS < files->num_samples >> BATCH_BITS
        ? (uint64_t)files->first_bytes + batch * (uint64_t)files->stride_bytes
        : (uint64_t)files->last_bytes;
    return (int64_t)(rows + row * ROW_BYTES);
}

static int read_offset_after(const Files *files, int64_t sample_id, int64_t *offset) {
    *offset = files->text_bytes;
    return sample_id + 1 == files->num_samples
        || read_sidecar(files, offset, ROW_BYTES, row_offset(files, sample_id + 1));
}

/* Set where lines `begin` to `end` start and end. Their rows lie near each other in one record batch. Lines whose rows
   the page cache lacks are marked as missing in the first pass. */
static int read_rows(const Files *files, Line *lines, size_t begin, size_t end, Pass pass, size_t *num_missed) {
    int64_t rows[MAX_ROWS];
    int64_t first = lines[begin].sample_id, last = lines[end - 1].sample_id, after = last + 1;
    int is_after_near = after < files->num_samples && batch_of(after) == batch_of(last);
    int64_t num_rows = last - first + 1, num_bytes = (num_rows + is_after_near) * ROW_BYTES;
    int64_t offset = row_offset(files, first);
    if (pass == TRY && !read_cached(files->sidecar, rows, num_bytes, offset, num_bytes, num_missed)) {
        for (size_t number = begin; number < end; number++) {
            lines[number].start = MISSING;
        }
        return 1;
    }
    if ((pass == WAIT && !read_sidecar(files, rows, num_bytes, offset))
        || (!is_after_near && !read_offset_after(files, last, &rows[num_rows]))) {
        return 0;
    }
    for (size_t number = begin; number < end; number++) {
        Line *line = &lines[number];
        line->start = rows[line->sample_id - first];
        line->end = rows[line->sample_id - first + 1];
        if (line->start < files->body_bytes || line->end <= line->start || line->end > files->text_bytes) {
            return 0;
        }
        if (line->end - line->start > MAX_LINE_BYTES + 2) {  /* blank lines follow the CR and the newline */
            line->end = line->start + MAX_LINE_BYTES + 2;
        }
    }
    return 1;
}

/* Set where each line starts and ends, in any order: copies from a map need not be merged. */
static int find_mapped_lines(const Files *files, Line *lines, size_t num_lines) {
    for (size_t number = 0; number < num_lines; number++) {
        if (number + AHEAD < num_lines) {
            uintptr_t row = (uintptr_t)row_offset(files, lines[number + AHEAD].sample_id);  /* not checked yet */
            __builtin_prefetch((const void *)((uintptr_t)files->sidecar_map + row));
        }
        if (!read_rows(files, lines, number, number + 1, WAIT, NULL)) {
            return 0;
        }
    }
    return 1;
}

static int find_lines(const Files *files, Line *lines, size_t num_lines, Pass pass, size_t *num_missed) {
    if (files->sidecar_map != NULL) {
        return pass == WAIT || find_mapped_lines(files, lines, num_lines);
    }
    for (size_t begin = 0, end; begin < num_lines; begin = end) {
        int64_t first = lines[begin].sample_id;
        for (end = begin + 1; end < num_lines; end++) {
            int64_t next = lines[end].sample_id;
            if (next - lines[end - 1].sample_id > SPARE_BYTES / ROW_BYTES || next - first > MAX_ROWS - 2
                || batch_of(next) != batch_of(first)) {
                break;
            }
        }
        if ((pass == TRY || lines[begin].start == MISSING)
            && !read_rows(files, lines, begin, end, pass, num_missed)) {
            return 0;
        }
    }
    return 1;
}

/* The newline before a line is read too. Together with the newline at its end, it proves that the offsets are right. */
static int64_t start_of(const Files *files, const Line *line) {
    return line->start - (line->start > files->body_bytes);
}

static void plan_runs(const Files *files, Plan *plan, int64_t *bounds) {
    Run *run = NULL;
    for (size_t number = 0; number < plan->num_lines; number++) {
        const Line *line = &plan->lines[number];
        int64_t start = start_of(files, line), reach = run == NULL ? 0 : run->offset + run->length;
        if (run == NULL || files->text_map != NULL || start < run->offset || start - reach > SPARE_BYTES
            || line->end - run->offset > MAX_RUN_BYTES) {
            plan->num_bytes += run == NULL ? 0 : run->length;
            run = &plan->runs[plan->num_runs++];
            *run = (Run){.offset = start, .length = line->end - start, .at = plan->num_bytes};
        } else if (line->end > reach) {
            run->length = line->end - run->offset;
        }
        bounds[2 * line->place] = run->at + line->start - run->offset;
        bounds[2 * line->place + 1] = run->at + line->end - run->offset;
    }
    plan->num_bytes += run == NULL ? 0 : run->length;
}

/* Find the lines whose rows are in the page cache, and ask for the rows of the others. */
static int start_plan(const Files *files, const int64_t *sample_ids, size_t num_lines, Plan *plan) {
    *plan = (Plan){
        .lines = calloc(num_lines + 1, sizeof(Line)), .runs = calloc(num_lines + 1, sizeof(Run)), .num_lines = num_lines,
    };
    if (plan->lines == NULL || plan->runs == NULL || !is_unchanged(files)) {
        return 0;
    }
    int is_sorted = 1;
    for (size_t place = 0; place < num_lines; place++) {
        if (sample_ids[place] < 0 || sample_ids[place] >= files->num_samples) {
            return 0;
        }
        plan->lines[place] = (Line){.sample_id = sample_ids[place], .place = (int64_t)place};
        is_sorted &= place == 0 || sample_ids[place - 1] <= sample_ids[place];
    }
    if (!is_sorted && files->sidecar_map == NULL) {
        qsort(plan->lines, num_lines, sizeof(Line), compare);
    }
    return find_lines(files, plan->lines, num_lines, TRY, &plan->num_missed);
}

int plan_lines(const Files *files, const int64_t *sample_ids, size_t num_lines, int64_t *bounds, Plan *plan) {
    if (!start_plan(files, sample_ids, num_lines, plan)
        || !find_lines(files, plan->lines, num_lines, WAIT, &plan->num_missed)) {
        return 0;
    }
    plan_runs(files, plan, bounds);
    return 1;
}

/* Ask for a line of the text unless its first and its last byte are in the page cache. */
static void ask_for_line(const Files *files, const Line *line, size_t *num_missed) {
    char byte;
    int64_t start = start_of(files, line);
    if (read_cached(files->text, &byte, 1, start, line->end - start, num_missed)) {
        read_cached(files->text, &byte, 1, line->end - 1, 1, num_missed);
    }
}

size_t ask_for_lines(const Files *files, const int64_t *sample_ids, size_t num_lines) {
    Plan plan;
    if (start_plan(files, sample_ids, num_lines, &plan)) {
        for (size_t number = 0; number < num_lines; number++) {
            if (plan.lines[number].start != MISSING) {
                ask_for_line(files, &plan.lines[number], &plan.num_missed);
            }
        }
    }
    free_plan(&plan);
    return plan.num_missed;
}

/* Cut the end of a line before its newline, which only the end of the text may lack; return 0 if anything but blank
   lines follows. */
static int cut(const char *data, int64_t start, int64_t *end, int is_at_end) {
    const char *newline = memchr(data + start, '\n', (size_t)(*end - start));
    if (newline == NULL) {
        return is_at_end;
    }
    for (const char *rest = newline + 1; rest < data + *end; rest++) {
        if (memchr(" \t\n\r\v\f", *rest, 6) == NULL) {
            return 0;
        }
    }
    *end = newline - data;
    return *end > start;
}

int read_lines(const Files *files, Plan *plan, char *result, int64_t *bounds) {
    for (size_t number = 0; number < plan->num_runs; number++) {
        Run *run = &plan->runs[number];
        if (files->text_map != NULL) {
            if (number + AHEAD < plan->num_runs) {
                __builtin_prefetch(files->text_map + plan->runs[number + AHEAD].offset);
            }
            memcpy(result + run->at, files->text_map + run->offset, (size_t)run->length);
            continue;
        }
        run->is_missing = !read_cached(
            files->text, result + run->at, run->length, run->offset, run->length, &plan->num_missed);
    }
    for (size_t number = 0; number < plan->num_runs; number++) {
        const Run *run = &plan->runs[number];
        if (run->is_missing && !read_all(files->text, result + run->at, run->length, run->offset)) {
            return 0;
        }
    }
    for (size_t number = 0; number < plan->num_lines; number++) {
        const Line *line = &plan->lines[number];
        int64_t *bound = &bounds[2 * line->place];
        if ((line->start > files->body_bytes && result[bound[0] - 1] != '\n')
            || !cut(result, bound[0], &bound[1], line->end == files->text_bytes)) {
            return 0;
        }
    }
    return 1;
}

void free_plan(Plan *plan) {
    free(plan->lines);
    free(plan->runs);
}

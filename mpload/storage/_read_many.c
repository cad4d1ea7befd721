/* Read many ranges of files into one area. Unusual ranges are declined. The caller reads them again with slower Python
   code, which handles the case or raises an error that explains it. */

#define _GNU_SOURCE
#include "_read_many.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifdef __APPLE__
#define st_ctim st_ctimespec
#endif

enum { ALIGN_BYTES = 64, MAX_PATH_BYTES = 4096, MAX_READ_BYTES = 1 << 30 };
enum { DECLINED = -1, IS_FULL = -2 };
enum { WINDOW_BYTES = 1 << 16, MAX_GAP_BYTES = 4096 };
enum { LOAD_PAGES = 22 };  /* MADV_POPULATE_READ, which older headers lack */
enum { LINE_BYTES = 64, PREFETCH_BYTES = 4096, COPIES_TIMED = 16 };

/* Bytes of a shard that were read together, because spans of the chunk follow each other there. */
typedef struct {
    int64_t number;  /* of the shard; -1: none */
    int64_t start, end;
    uint8_t bytes[WINDOW_BYTES];
} Window;

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int64_t read_at(int file, int64_t offset, uint8_t *to, int64_t num_bytes) {
    int64_t done = 0;
    while (done < num_bytes) {
        int64_t left = num_bytes - done;
        ssize_t got = pread(file, to + done, (size_t)(left < MAX_READ_BYTES ? left : MAX_READ_BYTES), offset + done);
        if (got <= 0) {
            return DECLINED;
        }
        done += got;
    }
    return num_bytes;
}

/* Return whether a range of this size may be read, and whether there is room for it. */
static int64_t judged(const ManyRanges *ranges, int64_t num_bytes, int64_t start) {
    int64_t most = ranges->step_bytes ? ranges->step_bytes : ranges->area_bytes;
    if (num_bytes > ranges->max_bytes || num_bytes > most) {
        return DECLINED;
    }
    return start > ranges->area_bytes || num_bytes > ranges->area_bytes - start ? IS_FULL : num_bytes;
}

/* Return the length of a name; 0 if there is none. */
static int64_t name_length(const int64_t *bounds, int64_t num_name_bytes) {
    return bounds[0] >= 0 && bounds[0] < bounds[1] && bounds[1] <= num_name_bytes ? bounds[1] - bounds[0] : 0;
}

static int64_t read_file(const ManyRanges *ranges, int64_t i, int64_t start) {
    const int64_t *bounds = ranges->bounds + 2 * i;
    int64_t length = name_length(bounds, ranges->num_name_bytes), num_bytes = 0;
    char path[MAX_PATH_BYTES];
    if (length == 0 || length >= MAX_PATH_BYTES || memchr(ranges->names + bounds[0], 0, (size_t)length) != NULL) {
        return DECLINED;
    }
    memcpy(path, ranges->names + bounds[0], (size_t)length);
    path[length] = 0;
    int file = open_file(ranges->folder, path, &num_bytes);
    if (file < 0) {
        return DECLINED;
    }
    int64_t size = judged(ranges, num_bytes, start);
    if (size > 0) {
        size = read_at(file, 0, ranges->area + start, size);
    }
    close(file);
    return size;
}

/* Return whether the next span of the chunk lies shortly behind this one. */
static int is_followed(const ManyRanges *ranges, int64_t i) {
    if (i + 1 >= ranges->num_ranges || ranges->numbers[i + 1] != ranges->numbers[i] || ranges->lengths[i + 1] < 0
        || ranges->lengths[i + 1] > WINDOW_BYTES / 4 || ranges->offsets[i + 1] < ranges->offsets[i]) {
        return 0;
    }
    return ranges->offsets[i + 1] - ranges->offsets[i] <= ranges->lengths[i] + MAX_GAP_BYTES;
}

/* Copy a short span from the window, which is filled first if that is worth it. Return whether this was done. */
static int copy_span(const ManyRanges *ranges, int64_t i, uint8_t *to, Window *window) {
    int64_t offset = ranges->offsets[i], num_bytes = ranges->lengths[i];
    if (num_bytes > WINDOW_BYTES / 4) {
        return 0;
    }
    int is_inside = window->number == ranges->numbers[i] && offset >= window->start && offset + num_bytes <= window->end;
    if (!is_inside) {
        if (!is_followed(ranges, i)) {
            return 0;
        }
        ssize_t got = pread(ranges->shards[ranges->numbers[i]].file, window->bytes, WINDOW_BYTES, offset);
        window->number = got < num_bytes ? -1 : ranges->numbers[i];
        window->start = offset;
        window->end = got < num_bytes ? offset : offset + got;
        if (window->number < 0) {
            return 0;
        }
    }
    memcpy(to, window->bytes + (offset - window->start), (size_t)num_bytes);
    return 1;
}

/* Return whether a range lies in the map of a shard. */
static int is_mapped(const ManyRanges *ranges, int64_t i) {
    int64_t number = ranges->numbers[i], offset = ranges->offsets[i], length = ranges->lengths[i];
    if (number < 0 || number >= ranges->num_shards || offset < 0 || length <= 0) {
        return 0;
    }
    int64_t num_bytes = ranges->shards[number].num_bytes;
    return length <= num_bytes && offset <= num_bytes - length;
}

int is_unchanged(const Shard *shard) {
    struct stat facts;
    return fstat(shard->file, &facts) == 0 && facts.st_size == shard->num_bytes
        && (uint64_t)facts.st_ctim.tv_sec * 1000000000 + (uint64_t)facts.st_ctim.tv_nsec == shard->changed_ns;
}

/* Load the pages of a mapped span that were not loaded before. Return 0 if that is impossible, for example because the
   disk fails: access to the pages would then kill this process by SIGBUS. Kernels older than 5.14 cannot tell. */
static int load(const Shard *shard, int64_t offset, int64_t num_bytes) {
    for (int64_t block = offset / BLOCK_BYTES; block <= (offset + num_bytes - 1) / BLOCK_BYTES; block++) {
        int64_t start = block * BLOCK_BYTES, left = shard->num_bytes - start;
        if (shard->are_loaded[block]) {
            continue;
        }
        size_t size = (size_t)(left < BLOCK_BYTES ? left : BLOCK_BYTES);
        if (madvise((void *)(uintptr_t)(shard->bytes + start), size, LOAD_PAGES) != 0 && errno != EINVAL) {
            return 0;
        }
        shard->are_loaded[block] = 1;
    }
    return 1;
}

/* Decline the spans that were copied from shards that have changed meanwhile: bytes that a file has lost are zeros at
   the end of its last page. */
static void decline_changed(const ManyRanges *ranges, int64_t num_done, int64_t *sizes) {
    for (int64_t number = 0; number < ranges->num_shards; number++) {
        if (ranges->shards[number].bytes == NULL || is_unchanged(&ranges->shards[number])) {
            continue;
        }
        for (int64_t i = 0; i < num_done; i++) {
            sizes[i] = ranges->numbers[i] == number && is_mapped(ranges, i) ? DECLINED : sizes[i];
        }
    }
}

static int64_t read_span(const ManyRanges *ranges, int64_t i, int64_t start, Window *window) {
    int64_t offset = ranges->offsets[i], number = ranges->numbers[i];
    if (number < 0 || number >= ranges->num_shards || ranges->shards[number].file < 0 || offset < 0
        || offset > INT64_MAX - ranges->lengths[i]
        || ranges->lengths[i] == 0) {  /* an empty one may lie behind the end of its shard, which no read would tell */
        return DECLINED;
    }
    const Shard *shard = &ranges->shards[number];
    int64_t size = judged(ranges, ranges->lengths[i], start);
    if (size > 0 && is_mapped(ranges, i) && load(shard, offset, size)) {
        memcpy(ranges->area + start, shard->bytes + offset, (size_t)size);
        return size;
    }
    if (size < 0 || copy_span(ranges, i, ranges->area + start, window)) {
        return size;
    }
    return read_at(shard->file, offset, ranges->area + start, size);
}

/* Begin to load a span into the processor's cache if it is mapped. Without the attribute, GCC may think that this does
   nothing, and leave it out. */
static inline __attribute__((always_inline)) void prefetch(const ManyRanges *ranges, int64_t i) {
    if (i < ranges->num_ranges && is_mapped(ranges, i)) {
        const uint8_t *bytes = ranges->shards[ranges->numbers[i]].bytes + ranges->offsets[i];
        int64_t num_bytes = ranges->lengths[i] < PREFETCH_BYTES ? ranges->lengths[i] : PREFETCH_BYTES;
        for (int64_t done = 0; done < num_bytes; done += LINE_BYTES) {
            __builtin_prefetch(bytes + done);
        }
    }
}

void read_many(const ManyRanges *ranges, ManyRead *result) {
    Window window;
    window.number = -1;
    int64_t next = 0, then_ns = now_ns(), num_timed = 0, i;
    result->num_slow = 0;
    for (i = 0; i < ranges->num_ranges && result->num_slow < ranges->max_slow; i++) {
        prefetch(ranges, i + 1);
        int64_t start = ranges->step_bytes ? i * ranges->step_bytes : next;
        if (ranges->at != NULL) {
            uint64_t place = (uint64_t)ranges->num_before + (uint64_t)i;
            *ranges->at = (int64_t)((uint64_t)ranges->first + place % (uint64_t)ranges->num_samples);
        }
        int64_t size = ranges->lengths[i] < 0 ? read_file(ranges, i, start) : read_span(ranges, i, start, &window);
        if (size == IS_FULL) {
            break;
        }
        result->starts[i] = start;
        result->sizes[i] = size;
        if (size > 0) {
            next = start + (size + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
        }
        if (is_mapped(ranges, i) && i % COPIES_TIMED && i + 1 < ranges->num_ranges) {
            continue;  /* reading the clock can take longer than copying a span */
        }
        int64_t read_ns = now_ns();
        result->num_slow += read_ns - then_ns > ranges->slow_ns ? i + 1 - num_timed : 0;
        then_ns = read_ns;
        num_timed = i + 1;
    }
    decline_changed(ranges, i, result->sizes);
    result->num_done = i;
    result->used_bytes = next;
}

int64_t distinct_names(
    const char *names, int64_t num_name_bytes, const int64_t *bounds, int64_t n, int64_t max_distinct, int64_t *which,
    int64_t *firsts) {
    int64_t num_distinct = 0, latest = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t start = bounds[2 * i], length = name_length(bounds + 2 * i, num_name_bytes);
        which[i] = -1;
        if (length == 0) {
            continue;
        }
        for (int64_t tried = 0; tried < num_distinct; tried++) {  /* the latest one first: neighbours often agree */
            int64_t known = (latest + tried) % num_distinct;
            const int64_t *other = bounds + 2 * firsts[known];
            if (other[1] - other[0] == length && memcmp(names + other[0], names + start, (size_t)length) == 0) {
                which[i] = known;
                break;
            }
        }
        if (which[i] < 0 && num_distinct < max_distinct) {
            firsts[num_distinct] = i;
            which[i] = num_distinct++;
        }
        latest = which[i] < 0 ? latest : which[i];
    }
    return num_distinct;
}

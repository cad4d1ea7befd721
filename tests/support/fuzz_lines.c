/* Damaged texts and sidecars through the native reader of lines: no error of memory, and no line outside the text.

       gcc -g -O1 -fsanitize=address,undefined tests/support/fuzz_lines.c mpload/index/_line_*.c -o fuzz
       ./fuzz SECONDS RANDOM_SEED */

#define _GNU_SOURCE

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../../mpload/index/_lines.h"

enum { MAX_SAMPLES = 3000, MAX_TEXT = 60000, MAX_REQUEST = 300, NUM_COLUMNS = 3 };

static const char LETTERS[] = "0123456789+@-\t\t\t\n\n\r\\ ab\xC3";
static char text[MAX_TEXT];
static uint64_t rows[MAX_SAMPLES];

static int64_t any(int64_t limit) {
    return (((int64_t)rand() << 31) ^ rand()) % limit;
}

static void *allocate(size_t num_bytes) {
    void *bytes = malloc(num_bytes + !num_bytes);  /* of this size, so that a byte too many is seen */
    if (bytes == NULL) {
        abort();
    }
    return bytes;
}

static void write_file(int file, const void *bytes, int64_t num_bytes) {
    if (ftruncate(file, 0) != 0 || pwrite(file, bytes, (size_t)num_bytes, 0) != num_bytes) {
        abort();
    }
}

/* Lines of any bytes, right offsets for most of them, and facts that are right or nearly so. */
static Files make_files(int text_file, int sidecar) {
    int64_t num_bytes = 1 + any(MAX_TEXT), num_samples = 0, last = rand() % 8 ? num_bytes : any(num_bytes + 1);
    int is_long = rand() % 8 == 0;
    for (int64_t place = 0; place < num_bytes; place++) {
        text[place] = is_long && rand() % 512 ? 'x' : LETTERS[rand() % (sizeof LETTERS - 1)];
        if (text[place] == '\n' && (place == 0 || text[place - 1] == '\n') && rand() % 4096) {
            text[place] = 'a';  /* an empty line is refused */
        }
        if (num_samples < MAX_SAMPLES && (place == 0 || text[place - 1] == '\n')) {
            rows[num_samples++] = (uint64_t)place;
        }
    }
    for (int times = rand() % 3; times > 0; times--) {
        rows[any(num_samples)] = rand() % 2 ? (uint64_t)any(num_bytes + 3) : (uint64_t)any(INT64_MAX) * (rand() % 3);
    }
    write_file(text_file, text, last);
    write_file(sidecar, rows, rand() % 8 ? num_samples * 8 : any(num_samples * 8 + 1));
    struct stat facts;
    fstat(text_file, &facts);
    Files files = {
        .text = text_file, .sidecar = sidecar, .num_samples = num_samples, .text_bytes = facts.st_size,
        .text_mtime_ns = (int64_t)facts.st_mtim.tv_sec * 1000000000 + facts.st_mtim.tv_nsec,
        .body_bytes = rand() % 8 ? 0 : any(num_bytes),
        .last_bytes = rand() % 8 ? 0 : any(INT64_MAX) * (rand() % 2 ? 1 : -1),
    };
    if (rand() % 16 == 0) {
        files.num_samples = any(INT64_MAX);
        files.first_bytes = any(INT64_MAX);
        files.stride_bytes = any(INT64_MAX);
    }
    return files;
}

static void parse(const char *data, int64_t num_bytes, const int64_t *bounds, size_t num_lines) {
    int64_t *cells = allocate(num_lines * NUM_COLUMNS * 16), value, offset, length;
    split_lines(data, num_bytes, bounds, num_lines, NUM_COLUMNS, cells);
    for (size_t number = 0; number < num_lines * NUM_COLUMNS; number++) {
        int64_t start = cells[2 * number], size = cells[2 * number + 1] - start;
        if (start >= 0) {
            char *cell = allocate((size_t)size);
            const char *path;
            memcpy(cell, data + start, (size_t)size);
            parse_integer(cell, cell + size, &value);
            if (parse_span(cell, cell + size, &offset, &length, &path)
                && (path >= cell + size || offset < 0 || length < 0 || offset > INT64_MAX - length)) {
                abort();
            }
            free(cell);
        }
    }
    free(cells);
}

/* Map the files, as a worker does with those of a small index. Empty files cannot be mapped. */
static void map_files(Files *files) {
    struct stat facts;
    fstat(files->sidecar, &facts);
    if (files->text_bytes > 0 && facts.st_size > 0) {
        files->sidecar_bytes = facts.st_size;
        files->text_map = mmap(NULL, (size_t)files->text_bytes, PROT_READ, MAP_PRIVATE, files->text, 0);
        files->sidecar_map = mmap(NULL, (size_t)facts.st_size, PROT_READ, MAP_PRIVATE, files->sidecar, 0);
        if (files->text_map == MAP_FAILED || files->sidecar_map == MAP_FAILED) {
            abort();
        }
    }
}

static void unmap_files(const Files *files) {
    if (files->text_map != NULL) {
        munmap((void *)files->text_map, (size_t)files->text_bytes);
        munmap((void *)files->sidecar_map, (size_t)files->sidecar_bytes);
    }
}

static int read_some(const Files *files) {
    size_t num_lines = (size_t)any(MAX_REQUEST);
    int64_t *sample_ids = allocate(num_lines * 8), *bounds = allocate(num_lines * 16);
    int64_t first = any(files->num_samples), reach = rand() % 2 ? 20 : files->num_samples;
    for (size_t place = 0; place < num_lines; place++) {
        sample_ids[place] = first + any(reach) - (rand() % 200 == 0);
        sample_ids[place] -= sample_ids[place] >= files->num_samples && rand() % 200 ? files->num_samples : 0;
    }
    if (rand() % 64 == 0) {  /* what is not in the page cache is read in a second pass */
        fdatasync(files->text);
        fdatasync(files->sidecar);
        posix_fadvise(rand() % 2 ? files->text : files->sidecar, 0, 0, POSIX_FADV_DONTNEED);
        ask_for_lines(files, sample_ids, num_lines);
    }
    Plan plan;
    int is_read = plan_lines(files, sample_ids, num_lines, bounds, &plan);
    if (is_read) {
        char *result = allocate((size_t)plan.num_bytes);
        is_read = read_lines(files, &plan, result, bounds);
        for (size_t place = 0; is_read && place < num_lines; place++) {
            if (bounds[2 * place] < 0 || bounds[2 * place] >= bounds[2 * place + 1]
                || bounds[2 * place + 1] > plan.num_bytes) {
                abort();
            }
        }
        if (is_read) {
            parse(result, plan.num_bytes, bounds, num_lines);
        }
        free(result);
    }
    free_plan(&plan);
    free(sample_ids);
    free(bounds);
    return is_read;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: %s SECONDS RANDOM_SEED\n", argv[0]);
        return 1;
    }
    srand((unsigned)atol(argv[2]));
    FILE *text_file = tmpfile(), *sidecar = tmpfile();
    if (text_file == NULL || sidecar == NULL) {
        perror("tmpfile");
        return 1;
    }
    long num_inputs = 0, num_read = 0;
    for (time_t end = time(NULL) + atol(argv[1]); time(NULL) < end;) {
        Files files = make_files(fileno(text_file), fileno(sidecar));
        if (rand() % 2) {
            map_files(&files);
        }
        for (int times = 0; times < 8; times++, num_inputs++) {
            num_read += read_some(&files);
        }
        unmap_files(&files);
    }
    printf("%ld inputs, %ld read\n", num_inputs, num_read);
    return 0;
}

/* Decode a list of views in C alone, one after the other, to measure mpload's decoder without any code around it.

   Usage: decode_limit VIEWS. Each line of the file VIEWS describes one view: the native decoder's numbers in its order,
   the height and width of the result, and the path of a file, up to the end of the line. For each line "first last" on
   standard input, the program decodes the views from first to last (exclusive), and prints the CPU time in nanoseconds,
   including reading the files. */

#define _GNU_SOURCE
#include "../mpload/images/_decoder.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    View view;
    char *path;
} Line;

static void stop(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static Line *read_lines(const char *path, long *count) {
    FILE *file = fopen(path, "r");
    Line *lines = NULL;
    View view;
    char name[4096];
    *count = 0;
    while (file != NULL && fscanf(
        file, "%d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %4095[^\n]\n", &view.stored_height, &view.stored_width,
        &view.denominator, &view.top, &view.left, &view.height, &view.width, &view.full_height, &view.full_width,
        &view.out_top, &view.out_left, &view.mirror, &view.antialias, &view.out_height, &view.out_width, name) == 16) {
        lines = realloc(lines, (size_t)(*count + 1) * sizeof *lines);
        if (lines == NULL || !is_view(&view)) {
            stop("the list of views is damaged");
        }
        lines[(*count)++] = (Line){view, strdup(name)};
    }
    return lines;
}

static long long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

int main(int argc, char **argv) {
    static uint8_t data[1 << 24], out[4096 * 4096 * 3];
    long count, first, last;
    Line *lines = argc == 2 ? read_lines(argv[1], &count) : NULL;
    Decoder *decoder = new_decoder(1);
    if (lines == NULL || decoder == NULL) {
        stop("usage: decode_limit VIEWS");
    }
    while (scanf("%ld %ld", &first, &last) == 2 && first >= 0 && last <= count) {
        long long start = now_ns();
        for (long number = first; number < last; number++) {
            int file = open(lines[number].path, O_RDONLY);
            ssize_t num_bytes = read(file, data, sizeof data);
            close(file);
            if (num_bytes < 0 || !decode_view(decoder, data, (size_t)num_bytes, &lines[number].view, out)) {
                stop(decoder->cause);
            }
        }
        printf("%lld\n", now_ns() - start);
        fflush(stdout);
    }
    return 0;
}

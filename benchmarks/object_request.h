/* The parts of an HTTP request that object_server.c needs. All strings are terminated. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/types.h>

enum { MAX_TARGET = 4096, MAX_PATH = MAX_TARGET + 4 };

/* Return the value of a header, with the rest of the request after it, or NULL. */
static const char *header(const char *request, const char *name) {
    size_t length = strlen(name);
    for (const char *line = request; (line = strstr(line, "\r\n")) != NULL;) {
        line += 2;
        if (strncasecmp(line, name, length) == 0 && line[length] == ':') {
            line += length + 1;
            return line + strspn(line, " ");
        }
    }
    return NULL;
}

/* Write the path of the file of a request's target to `path`; return 0 if it names none. */
static int find_path(const char *target, char path[MAX_PATH]) {
    const char *query = strchr(target, '?');
    size_t size = 0, length = query == NULL ? strlen(target) : (size_t)(query - target);
    for (size_t place = 1; place < length; place++) {
        unsigned byte = (unsigned char)target[place];
        if (byte == '%' && (place + 2 >= length || sscanf(target + place + 1, "%2x", &byte) != 1)) {
            return 0;
        }
        place += target[place] == '%' ? 2 : 0;
        path[size++] = (char)byte;
    }
    while (size > 0 && path[size - 1] == '/') {
        size--;
    }
    path[size] = '\0';
    if (query != NULL && strstr(query, "list-type=2") != NULL) {
        snprintf(path + size, MAX_PATH - size, ".xml");
    }
    return path[0] != '/' && strlen(path) >= size && strstr(path, "..") == NULL;
}

/* Take the range of a request from `*offset` and `*end`; return 0 if it lies outside of the file. */
static int take_range(const char *range, off_t size, off_t *offset, off_t *end) {
    char *rest;
    range += strlen("bytes=");
    if (*range == '-') {
        long long last = strtoll(range + 1, NULL, 10);
        *offset = last < size ? size - last : 0;
        return last > 0 && *offset < *end;
    }
    *offset = strtoll(range, &rest, 10);
    if (*rest == '-' && rest[1] >= '0' && rest[1] <= '9') {
        long long last = strtoll(rest + 1, NULL, 10);
        *end = last < size ? last + 1 : size;
    }
    return *offset >= 0 && *offset < *end;
}

/* An HTTP/1.1 server of the files below a folder, which delays its answers, for benchmarks of remote reads.

   Usage: object_server FOLDER DELAY_US SLOW_FRACTION SLOW_US BYTES_PER_SECOND SEED

   It listens on a free port of 127.0.0.1 and prints that port. It answers GET and HEAD with ETag, Last-Modified and
   ranges, over connections that stay open, DELAY_US after a request has arrived. SLOW_FRACTION of the requests, drawn at
   random, take SLOW_US longer. If BYTES_PER_SECOND is not 0, all connections share that bandwidth. An S3 client can read
   too: /BUCKET/KEY is a path in the folder, signatures are ignored, and the list of a bucket's objects is the file
   BUCKET.xml. /-/counts answers at once with what was counted so far, as JSON. One thread does all, so that the clients
   have the other cores; a request costs about 20 us. SIGTERM ends the server. */

#define _GNU_SOURCE
#include "object_request.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAX_CONNECTIONS = 4096, MAX_TIMERS = 1 << 16, MAX_REQUEST = 8192, PART = 1 << 16, NUM_EVENTS = 256 };

typedef enum { READING, WAITING, SENDING } State;

typedef struct {
    State state;
    uint32_t use; /* number of connections that had this descriptor before; tells timers of those apart */
    int is_open, file, closes;
    char request[MAX_REQUEST];
    size_t request_length;
    char head[2048]; /* the head of the answer, and the body if that is not a file */
    size_t head_length, head_sent;
    off_t offset, end; /* the part of the file that is still to send */
} Connection;

typedef struct {
    int64_t due;
    int number;
    uint32_t use;
} Timer;

static Connection *connections[MAX_CONNECTIONS]; /* by descriptor */
static Timer timers[MAX_TIMERS];                 /* a heap; the first is due first */
static size_t num_timers;
static int root, poller;
static int64_t delay, slow_delay, bytes_per_second, link_free;
static double slow_fraction;
static uint64_t seed;
static struct {
    long long requests, bytes, slow, connections, waiting, most_waiting;
} counts;
static volatile sig_atomic_t is_stopped;

static void stop(int number) {
    (void)number;
    is_stopped = 1;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Return a number in [0, 1): SplitMix64, by Steele, Lea and Flood. */
static double drawn(void) {
    uint64_t value = seed += 0x9e3779b97f4a7c15;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
    value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
    return (double)((value ^ (value >> 31)) >> 11) * 0x1p-53;
}

static int add_timer(int number, int64_t due) {
    if (num_timers == MAX_TIMERS) {
        return -1;
    }
    size_t place = num_timers++;
    for (; place > 0 && timers[(place - 1) / 2].due > due; place = (place - 1) / 2) {
        timers[place] = timers[(place - 1) / 2];
    }
    timers[place] = (Timer){due, number, connections[number]->use};
    return 0;
}

static Timer pop_timer(void) {
    Timer first = timers[0], last = timers[--num_timers];
    size_t place = 0, child;
    for (; (child = 2 * place + 1) < num_timers; place = child) {
        child += child + 1 < num_timers && timers[child + 1].due < timers[child].due;
        if (timers[child].due >= last.due) {
            break;
        }
        timers[place] = timers[child];
    }
    timers[place] = last;
    return first;
}

static void release_file(Connection *connection) {
    if (connection->file >= 0) {
        close(connection->file);
    }
    connection->file = -1;
}

static void drop(int number) {
    Connection *connection = connections[number];
    counts.waiting -= connection->state != READING;
    release_file(connection);
    connection->is_open = 0;
    connection->use++;
    close(number);
}

/* Make a whole answer of `text` in the head. */
static void answer(Connection *connection, const char *status, const char *text, int has_body) {
    int length = snprintf(
        connection->head, sizeof connection->head,
        "HTTP/1.1 %s\r\nContent-Length: %zu\r\nContent-Type: application/xml\r\n%s\r\n%s", status, strlen(text),
        connection->closes ? "Connection: close\r\n" : "", has_body ? text : "");
    connection->head_length = (size_t)length < sizeof connection->head ? (size_t)length : sizeof connection->head - 1;
    connection->offset = connection->end = 0;
}

static void answer_with_file(Connection *connection, const char *target, const char *range, int has_body) {
    char path[MAX_PATH], date[64], modified[64], part[128] = "";
    struct stat status;
    release_file(connection);
    if (find_path(target, path)) {
        connection->file = openat(root, path[0] ? path : ".", O_RDONLY | O_CLOEXEC);
    }
    if (connection->file < 0 || fstat(connection->file, &status) != 0) {
        answer(connection, "404 Not Found", "<Error><Code>NoSuchKey</Code><Message>no such file</Message></Error>",
               has_body);
        return;
    }
    if (!S_ISREG(status.st_mode)) { /* a bucket */
        answer(connection, "200 OK", "", 0);
        return;
    }
    connection->offset = 0;
    connection->end = status.st_size;
    if (range != NULL && strncmp(range, "bytes=", 6) == 0) {
        if (!take_range(range, status.st_size, &connection->offset, &connection->end)) {
            answer(connection, "416 Range Not Satisfiable", "<Error><Code>InvalidRange</Code></Error>", has_body);
            return;
        }
        snprintf(part, sizeof part, "Content-Range: bytes %lld-%lld/%lld\r\n", (long long)connection->offset,
                 (long long)connection->end - 1, (long long)status.st_size);
    }
    time_t seconds = time(NULL);
    struct tm broken;
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&seconds, &broken));
    strftime(modified, sizeof modified, "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&status.st_mtime, &broken));
    connection->head_length = (size_t)snprintf(
        connection->head, sizeof connection->head,
        "HTTP/1.1 %s\r\nDate: %s\r\nContent-Type: application/octet-stream\r\nContent-Length: %lld\r\n"
        "Accept-Ranges: bytes\r\nETag: \"%llx-%llx\"\r\nLast-Modified: %s\r\n%s%s\r\n",
        part[0] ? "206 Partial Content" : "200 OK", date, (long long)(connection->end - connection->offset),
        (long long)status.st_mtime, (long long)status.st_size, modified, part,
        connection->closes ? "Connection: close\r\n" : "");
    if (!has_body) {
        connection->offset = connection->end;
    }
}

/* Prepare the answer to the whole request of `length` bytes; return the nanoseconds until it is sent, or -1. */
static int64_t prepare(Connection *connection, size_t length) {
    char *request = connection->request, method[8], target[MAX_TARGET];
    int minor;
    request[length - 1] = '\0'; /* the last line feed, so that a search ends here */
    int is_whole = sscanf(request, "%7s %4095s HTTP/1.%d", method, target, &minor) == 3 && target[0] == '/';
    int is_head = is_whole && strcmp(method, "HEAD") == 0;
    if (!is_whole || (!is_head && strcmp(method, "GET") != 0)) {
        return -1; /* such a request may have a body */
    }
    const char *range = header(request, "Range"), *wish = header(request, "Connection");
    connection->closes = minor == 0 || (wish != NULL && strncasecmp(wish, "close", 5) == 0);
    connection->head_sent = 0;
    if (strcmp(target, "/-/counts") == 0) {
        char text[512];
        snprintf(text, sizeof text,
                 "{\"requests\": %lld, \"bytes\": %lld, \"slow\": %lld, \"connections\": %lld, \"most_waiting\": %lld}",
                 counts.requests, counts.bytes, counts.slow, counts.connections, counts.most_waiting);
        answer(connection, "200 OK", text, !is_head);
        counts.most_waiting = 0;
        return 0;
    }
    int is_slow = slow_fraction > 0 && drawn() < slow_fraction;
    counts.requests++;
    counts.slow += is_slow;
    answer_with_file(connection, target, range, !is_head);
    return delay + (is_slow ? slow_delay : 0);
}

static int send_answer(int number);

/* Read requests as long as they can be answered at once; return -1 if the connection has to end. */
static int read_requests(int number) {
    Connection *connection = connections[number];
    while (connection->state == READING) {
        char *end = memmem(connection->request, connection->request_length, "\r\n\r\n", 4);
        if (end == NULL) {
            size_t room = MAX_REQUEST - 1 - connection->request_length;
            ssize_t got = recv(number, connection->request + connection->request_length, room, 0);
            if (got <= 0) {
                return room > 0 && got < 0 && errno == EAGAIN ? 0 : -1;
            }
            connection->request_length += (size_t)got;
            continue;
        }
        size_t length = (size_t)(end - connection->request) + 4;
        int64_t wait = prepare(connection, length);
        connection->request_length -= length;
        memmove(connection->request, connection->request + length, connection->request_length);
        if (wait < 0) {
            return -1;
        }
        connection->state = wait > 0 ? WAITING : SENDING;
        counts.waiting++;
        counts.most_waiting = counts.waiting > counts.most_waiting ? counts.waiting : counts.most_waiting;
        if (wait > 0 ? add_timer(number, now() + wait) : send_answer(number)) {
            return -1;
        }
    }
    return 0;
}

/* Send as much of the answer as the socket takes; return -1 if the connection has to end. */
static int send_answer(int number) {
    Connection *connection = connections[number];
    while (connection->head_sent < connection->head_length) {
        ssize_t sent = send(number, connection->head + connection->head_sent,
                            connection->head_length - connection->head_sent,
                            MSG_NOSIGNAL | (connection->offset < connection->end ? MSG_MORE : 0));
        if (sent < 0) {
            return errno == EAGAIN ? 0 : -1;
        }
        connection->head_sent += (size_t)sent;
    }
    while (connection->offset < connection->end) {
        size_t part = (size_t)(connection->end - connection->offset);
        part = bytes_per_second && part > PART ? PART : part;
        ssize_t sent = sendfile(number, connection->file, &connection->offset, part);
        if (sent <= 0) {
            return sent < 0 && errno == EAGAIN ? 0 : -1;
        }
        counts.bytes += sent;
        if (bytes_per_second) {
            int64_t start = link_free > now() ? link_free : now();
            link_free = start + sent * 1000000000 / bytes_per_second;
            connection->state = WAITING;
            return add_timer(number, link_free);
        }
    }
    release_file(connection);
    counts.waiting--;
    connection->state = READING;
    return connection->closes ? -1 : 0;
}

static void accept_all(int listener) {
    for (int number; (number = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) {
        struct epoll_event event = {EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, {.fd = number}};
        setsockopt(number, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        if (number < MAX_CONNECTIONS && connections[number] == NULL) {
            connections[number] = calloc(1, sizeof(Connection));
        }
        if (number >= MAX_CONNECTIONS || connections[number] == NULL ||
            epoll_ctl(poller, EPOLL_CTL_ADD, number, &event) != 0) {
            close(number);
            continue;
        }
        Connection *connection = connections[number];
        *connection = (Connection){.state = READING, .use = connection->use, .is_open = 1, .file = -1};
        counts.connections++;
    }
}

/* Go on with a connection, in whatever state it is; end it if that is impossible. */
static void proceed(int number) {
    int failed = 0;
    if (connections[number]->state == SENDING) {
        failed = send_answer(number);
    }
    if (!failed && connections[number]->state == READING) {
        failed = read_requests(number);
    }
    if (failed) {
        drop(number);
    }
}

static int listen_on_free_port(void) {
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    struct epoll_event event = {EPOLLIN, {.fd = listener}};
    if (bind(listener, (struct sockaddr *)&address, length) != 0 || listen(listener, 1024) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &length) != 0 ||
        epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event) != 0) {
        fail("cannot listen");
    }
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    return listener;
}

int main(int count, char **words) {
    if (count != 7) {
        fprintf(stderr, "usage: object_server FOLDER DELAY_US SLOW_FRACTION SLOW_US BYTES_PER_SECOND SEED\n");
        return 2;
    }
    delay = atoll(words[2]) * 1000;
    slow_fraction = atof(words[3]);
    slow_delay = atoll(words[4]) * 1000;
    bytes_per_second = atoll(words[5]);
    seed = (uint64_t)atoll(words[6]);
    root = open(words[1], O_PATH | O_DIRECTORY | O_CLOEXEC);
    poller = epoll_create1(EPOLL_CLOEXEC);
    if (root < 0 || poller < 0) {
        fail(words[1]);
    }
    sigset_t blocked, none;
    sigemptyset(&none);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGTERM);
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    sigaction(SIGPIPE, &(struct sigaction){.sa_handler = SIG_IGN}, NULL); /* sendfile has no MSG_NOSIGNAL */
    sigaction(SIGTERM, &(struct sigaction){.sa_handler = stop}, NULL);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    for (int listener = listen_on_free_port(); !is_stopped;) {
        struct epoll_event events[NUM_EVENTS];
        int64_t wait = num_timers ? timers[0].due - now() : 1000000000;
        wait = wait > 0 ? wait : 0;
        struct timespec limit = {wait / 1000000000, wait % 1000000000};
        int num_events = epoll_pwait2(poller, events, NUM_EVENTS, &limit, &none);
        for (int place = 0; place < num_events; place++) {
            int number = events[place].data.fd;
            if (number == listener) {
                accept_all(listener);
            } else if (connections[number]->is_open) {
                if (events[place].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) {
                    drop(number);
                } else {
                    proceed(number);
                }
            }
        }
        for (int64_t time = now(); num_timers && timers[0].due <= time;) {
            Timer timer = pop_timer();
            if (connections[timer.number]->is_open && connections[timer.number]->use == timer.use) {
                connections[timer.number]->state = SENDING;
                proceed(timer.number);
            }
        }
    }
    return 0;
}

// What the test programs share. A check that fails ends the program with a line that says where.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                     \
    do {                                                                                     \
        if (!(condition)) {                                                                  \
            char text[200];                                                                  \
            int length = snprintf(text, sizeof text, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
            if (write(2, text, length) < 0) _exit(91);                                       \
            _exit(90);                                                                       \
        }                                                                                    \
    } while (0)

// Whether a descriptor is of a copy: it lies in the tier.
static inline int is_copy(int fd)
{
    char name[64], target[4096];
    const char *tier = getenv("COVERED_TIER");
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(name, target, sizeof target - 1);
    if (length < 0) return 0;
    target[length] = 0;
    return strncmp(target, tier, strlen(tier)) == 0;
}

// Opens until a copy answers.
static inline int open_copy(const char *path)
{
    for (int tries = 0; tries < 12000; tries++) {
        int fd = open(path, O_RDONLY);
        CHECK(fd >= 0);
        if (is_copy(fd)) return fd;
        // What is opened and not read is not copied.
        char bytes[64];
        CHECK(read(fd, bytes, sizeof bytes) >= 0);
        close(fd);
        usleep(10000);
    }
    CHECK(!"no copy has answered");
    return -1;
}

// Whether a file that is opened and read now holds this text.
static inline int holds(const char *path, const char *text)
{
    char bytes[256];
    int fd = open(path, O_RDONLY);
    if (fd < 0) return 0;
    ssize_t length = read(fd, bytes, sizeof bytes);
    close(fd);
    return length == (ssize_t)strlen(text) && memcmp(bytes, text, length) == 0;
}

// How many descriptors are open.
static inline int open_descriptors(void)
{
    int count = 0;
    for (int fd = 0; fd < 1024; fd++)
        if (fcntl(fd, F_GETFD) >= 0) count++;
    return count;
}

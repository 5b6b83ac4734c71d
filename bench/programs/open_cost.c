/* What an open (with its close) and a stat cost, in nanoseconds of CPU time: through whatever is preloaded, and through libc alone.
 *
 * usage: open_cost DIRECTORY WHERE FOREIGN ROUNDS
 *
 * Opens the files of DIRECTORY until each leads to a file below WHERE. Then, round by round, in random order: those files by their own
 * names (copy), the files of DIRECTORY by absolute path (hit) and relative to it (relative), and FOREIGN, which is below neither,
 * through libc alone (plain) and as any program would (foreign); stats likewise. One line of JSON a round. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { FILES_MAX = 1000, WAIT_TENTHS_MAX = 300 };
enum { COPY, HIT, RELATIVE, PLAIN, FOREIGN, STAT_COPY, STAT_HIT, STAT_PLAIN, STAT_FOREIGN, KINDS };

static char *paths[FILES_MAX], *names[FILES_MAX], *copies[FILES_MAX], *foreign[FILES_MAX];
static int count;

typedef int open_function(const char *, int, ...);
typedef int stat_function(const char *, struct stat *);
static open_function *plain_open;
static stat_function *plain_stat;

static const struct {
    const char *name;
    char *const *which;
    int is_plain, is_stat;
} kinds[KINDS] = {
    [COPY] = {"copy", copies, 1, 0},
    [HIT] = {"hit", paths, 0, 0},
    [RELATIVE] = {"relative", names, 0, 0},
    [PLAIN] = {"plain", foreign, 1, 0},
    [FOREIGN] = {"foreign", foreign, 0, 0},
    [STAT_COPY] = {"stat_copy", copies, 1, 1},
    [STAT_HIT] = {"stat_hit", paths, 0, 1},
    [STAT_PLAIN] = {"stat_plain", foreign, 1, 1},
    [STAT_FOREIGN] = {"stat_foreign", foreign, 0, 1},
};

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void list(const char *directory) {
    DIR *listing = opendir(directory);
    struct dirent *entry;
    if (listing == NULL)
        fail(directory);
    while (count < FILES_MAX && (entry = readdir(listing)) != NULL) {
        if (entry->d_name[0] == '.')
            continue;
        names[count] = strdup(entry->d_name);
        if (asprintf(&paths[count], "%s/%s", directory, entry->d_name) < 0)
            fail("memory");
        count++;
    }
    closedir(listing);
}

/* Where a path leads, once that is below `where`. */
static char *copy_of(const char *path, const char *where) {
    char link[64], target[PATH_MAX], byte;
    for (int tenth = 0; tenth < WAIT_TENTHS_MAX; tenth++) {
        int descriptor = open(path, O_RDONLY);
        if (descriptor < 0)
            fail(path);
        snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
        ssize_t length = readlink(link, target, sizeof target - 1);
        if (length < 0 || read(descriptor, &byte, 1) < 0)
            fail(link);
        target[length] = '\0';
        close(descriptor);
        if (strncmp(target, where, strlen(where)) == 0)
            return strdup(target);
        usleep(100 * 1000);
    }
    fprintf(stderr, "%s does not lead below %s\n", path, where);
    exit(1);
}

static double cpu_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void open_all(open_function *opens, char *const *which, const int *order) {
    for (int number = 0; number < count; number++) {
        int descriptor = opens(which[order[number]], O_RDONLY);
        if (descriptor < 0)
            fail(which[order[number]]);
        close(descriptor);
    }
}

static void stat_all(stat_function *stats, char *const *which, const int *order) {
    struct stat status;
    for (int number = 0; number < count; number++)
        if (stats(which[order[number]], &status) != 0)
            fail(which[order[number]]);
}

static double measure(int kind, const int *order) {
    double begun = cpu_ns();
    if (kinds[kind].is_stat)
        stat_all(kinds[kind].is_plain ? plain_stat : stat, kinds[kind].which, order);
    else
        open_all(kinds[kind].is_plain ? plain_open : open, kinds[kind].which, order);
    return (cpu_ns() - begun) / count;
}

int main(int words, char **word) {
    if (words != 5) {
        fprintf(stderr, "usage: open_cost DIRECTORY WHERE FOREIGN ROUNDS\n");
        return 2;
    }
    void *libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    plain_open = libc == NULL ? NULL : (open_function *)dlsym(libc, "open");
    plain_stat = libc == NULL ? NULL : (stat_function *)dlsym(libc, "stat");
    if (plain_open == NULL || plain_stat == NULL || chdir(word[1]) != 0)
        fail("libc, or the directory");
    int order[FILES_MAX];
    list(word[1]);
    /* All are opened once before any is asked for again. */
    for (int number = 0; number < count; number++) {
        char byte;
        int descriptor = open(paths[number], O_RDONLY);
        if (descriptor < 0 || read(descriptor, &byte, 1) < 0)
            fail(paths[number]);
        close(descriptor);
    }
    for (int number = 0; number < count; number++) {
        copies[number] = copy_of(paths[number], word[2]);
        foreign[number] = word[3];
        order[number] = number;
    }
    srandom(1);
    for (int round = 0; round < atoi(word[4]); round++) {
        double took[KINDS];
        for (int number = count - 1; number > 0; number--) {
            int other = (int)(random() % (number + 1)), kept = order[number];
            order[number] = order[other];
            order[other] = kept;
        }
        for (int turn = 0; turn < KINDS; turn++) {
            int kind = (turn + round) % KINDS;
            took[kind] = measure(kind, order);
        }
        printf("{");
        for (int kind = 0; kind < KINDS; kind++)
            printf("%s\"%s\": %.1f", kind == 0 ? "" : ", ", kinds[kind].name, took[kind]);
        printf("}\n");
    }
    return 0;
}

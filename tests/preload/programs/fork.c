// Four threads open while the main one makes children by fork, vfork and posix_spawn, each of which opens too.
#include "covered.h"
#include <spawn.h>

extern char **environ;
static volatile int done;

static void *opens(void *name)
{
    while (!done) {
        int fd = open(name, O_RDONLY);
        CHECK(fd >= 0);
        close(fd);
    }
    return NULL;
}

static void must_end_well(pid_t child)
{
    int status;
    CHECK(child > 0);
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int count, char **words)
{
    pthread_t threads[4];
    char *names[] = {"f0", "f1", "f2", "/etc/hostname"};
    (void)count;
    close(open_copy("f5"));
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, opens, names[i]) == 0);
    for (int i = 0; i < 200; i++) {
        pid_t child = fork();
        if (child == 0) {
            // One that waits for a lock of ours would wait for ever.
            alarm(120);
            int fd = open("f5", O_RDONLY);
            struct stat status;
            _exit(!(fd >= 0 && is_copy(fd) && stat("f5", &status) == 0 && status.st_size == 7 && holds("f6", "file 6\n")));
        }
        must_end_well(child);
    }
    for (int i = 0; i < 50; i++) {
        pid_t child = vfork();
        if (child == 0) _exit(open("f5", O_RDONLY) < 0 || access("f5", R_OK) != 0);
        must_end_well(child);
    }
    // A child by vfork has a descriptor table of its own, but our memory: it must leave nothing changed there.
    CHECK(holds("f7", "file 7\n"));
    for (int i = 0; i < 20; i++) {
        pid_t child;
        posix_spawn_file_actions_t actions;
        char *arguments[] = {"cmp", "-s", "-", "f8", NULL};
        CHECK(posix_spawn_file_actions_init(&actions) == 0);
        CHECK(posix_spawn_file_actions_addopen(&actions, 0, "f8", O_RDONLY, 0) == 0);
        CHECK(posix_spawnp(&child, "cmp", &actions, NULL, arguments, environ) == 0);
        posix_spawn_file_actions_destroy(&actions);
        must_end_well(child);
    }
    done = 1;
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    (void)words;
    return 0;
}

// A handler opens and asks every 100 microseconds, on a small stack, while the program opens, writes and looks at
// descriptors itself.
#include "covered.h"

static volatile int handled;

static void handler(int number)
{
    int before = errno;
    (void)number;
    char path[1000];
    // Absolute: where the current directory has to be asked for, opening takes 4 KiB more.
    snprintf(path, sizeof path, "%s/f3", getenv("COVERED_SOURCE"));
    int fd = open(path, O_RDONLY);
    struct stat status;
    CHECK(fd >= 0 && fstat(fd, &status) == 0 && status.st_size == 7);
    close(fd);
    CHECK(stat(path, &status) == 0 && status.st_size == 7 && access(path, R_OK) == 0);
    CHECK(errno == before);
    handled++;
}

int main(void)
{
    close(open_copy("f4"));
    static char stack[32768];
    stack_t alternative = {.ss_sp = stack, .ss_size = sizeof stack};
    CHECK(sigaltstack(&alternative, NULL) == 0);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK | SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval storm = {{0, 100}, {0, 100}}, calm = {{0, 0}, {0, 0}};
    CHECK(setitimer(ITIMER_REAL, &storm, NULL) == 0);
    for (int i = 0; i < 30000; i++) {
        errno = 1234;
        int fd = open("f4", O_RDONLY);
        CHECK(fd >= 0 && errno == 1234);
        struct stat status;
        CHECK(fstat(fd, &status) == 0 && status.st_size == 7);
        close(fd);
        CHECK(open("absent", O_RDONLY) == -1 && errno == ENOENT);
    }
    CHECK(setitimer(ITIMER_REAL, &calm, NULL) == 0);
    CHECK(handled > 100);
    CHECK(open_descriptors() == 3);
    return 0;
}

// CPU microseconds that an open and its close take, in 15 rounds.
#include "covered.h"
#include <time.h>

int main(int count, char **words)
{
    struct timespec from, to;
    CHECK(count == 2);
    for (int i = 0; i < 100; i++) close(open(words[1], O_RDONLY));
    for (int round = 0; round < 15; round++) {
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
        for (int i = 0; i < 10000; i++) {
            int fd = open(words[1], O_RDONLY);
            CHECK(fd >= 0);
            close(fd);
        }
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
        printf("%f\n", ((to.tv_sec - from.tv_sec) * 1e9 + (to.tv_nsec - from.tv_nsec)) / 10000 / 1000);
    }
    return 0;
}

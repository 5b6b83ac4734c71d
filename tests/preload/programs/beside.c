// Reads by several ways beside whatever else is preloaded, in a child too: each answer is a copy's, and each byte
// right.
#include "covered.h"

static void reads(void)
{
    char text[64];
    for (int round = 0; round < 100; round++) {
        size_t size = 1 + round * 1000;
        char *block = malloc(size);
        CHECK(block);
        memset(block, round, size);
        int fd = open("f1", O_RDONLY);
        FILE *file = fopen("f2", "r");
        struct stat named, opened;
        CHECK(fd >= 0 && is_copy(fd) && read(fd, text, sizeof text) == 7 && memcmp(text, "file 1\n", 7) == 0);
        CHECK(file && is_copy(fileno(file)) && fread(text, 1, sizeof text, file) == 7 && memcmp(text, "file 2\n", 7) == 0);
        CHECK(stat("f1", &named) == 0 && fstat(fd, &opened) == 0);
        CHECK(named.st_dev == opened.st_dev && named.st_ino == opened.st_ino);
        fclose(file);
        close(fd);
        free(block);
    }
    int foreign = open("/dev/null", O_RDONLY);
    CHECK(foreign >= 0 && !is_copy(foreign));
    close(foreign);
}

int main(int count, char **words)
{
    if (count > 1) {
        // Only until a copy answers.
        close(open_copy(words[1]));
        puts("well");
        return 0;
    }
    close(open_copy("f1"));
    close(open_copy("f2"));
    reads();
    pid_t child = fork();
    if (child == 0) {
        reads();
        _exit(0);
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    puts("well");
    return 0;
}

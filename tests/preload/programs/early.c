// A library that opens and asks when it is loaded and when it is unloaded, before the preload library's own constructor
// and after everything else.
#include "covered.h"

static int reads(const char *path, const char *text)
{
    char bytes[64];
    int fd = open(path, O_RDONLY);
    FILE *file = fopen(path, "r");
    struct stat status;
    CHECK(fd >= 0 && file && fstat(fd, &status) == 0 && status.st_size == (off_t)strlen(text));
    CHECK(stat(path, &status) == 0 && status.st_size == (off_t)strlen(text) && access(path, R_OK) == 0);
    CHECK(read(fd, bytes, sizeof bytes) == (ssize_t)strlen(text) && memcmp(bytes, text, strlen(text)) == 0);
    CHECK(fread(bytes, 1, sizeof bytes, file) == strlen(text) && memcmp(bytes, text, strlen(text)) == 0);
    fclose(file);
    close(fd);
    return 0;
}

__attribute__((constructor(101))) static void first(void) { reads("f1", "file 1\n"); }
__attribute__((constructor)) static void later(void) { reads("f2", "file 2\n"); }
__attribute__((destructor(101))) static void last(void)
{
    reads("f3", "file 3\n");
    // Programs close their outputs before they end: what was read is noted in a file.
    int mark = creat(getenv("EARLY_MARK"), 0600);
    CHECK(mark >= 0 && write(mark, "last", 4) == 4);
}

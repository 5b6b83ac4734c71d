// Streams that only read.
#include "covered.h"

static void reads(FILE *file, const char *text)
{
    char line[64];
    CHECK(file && fgets(line, sizeof line, file) && strcmp(line, text) == 0);
    CHECK(!fgets(line, sizeof line, file) && feof(file));
}

int main(void)
{
    char path[1000];
    const char *modes[] = {"r", "rb", "re", "rbe", "rm", "rc"};
    close(open_copy("f1"));
    for (int i = 0; i < 6; i++) {
        errno = 77;
        FILE *file = fopen("f1", modes[i]);
        CHECK(file && errno == 77 && is_copy(fileno(file)));
        CHECK(!!(fcntl(fileno(file), F_GETFD) & FD_CLOEXEC) == !!strchr(modes[i], 'e'));
        reads(file, "file 1\n");
        CHECK(fclose(file) == 0);
    }
    snprintf(path, sizeof path, "%s/f2", getenv("COVERED_SOURCE"));
    FILE *file = fopen64(path, "r");
    CHECK(file && is_copy(fileno(file)));
    reads(file, "file 2\n");

    // The same stream on another file, and then on standard input's descriptor.
    FILE *same = freopen("f3", "r", file);
    CHECK(same == file && is_copy(fileno(file)));
    reads(file, "file 3\n");
    CHECK(freopen64(path, "r", file) == file && is_copy(fileno(file)));
    CHECK(fclose(file) == 0);
    CHECK(freopen("f4", "r", stdin) == stdin && fileno(stdin) == 0 && is_copy(0));
    reads(stdin, "file 4\n");

    file = fopen("f1", "r,ccs=UTF-8");
    CHECK(file && !is_copy(fileno(file)) && fclose(file) == 0);
    CHECK(!fopen("absent", "r") && errno == ENOENT);
    CHECK(!fopen("f1", "nonsense") && errno == EINVAL);
    file = fopen("/etc/hostname", "r");
    CHECK(file && fclose(file) == 0);
    CHECK(open_descriptors() == 3);
    return 0;
}

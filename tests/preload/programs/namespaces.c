// In another root, or another mount namespace, paths mean something else: the preload library passes.
#include "covered.h"
#include <sched.h>
#include <sys/mount.h>

int main(int count, char **words)
{
    CHECK(count == 2);
    const char *source = getenv("COVERED_SOURCE");
    char path[1000];
    snprintf(path, sizeof path, "%s/f1", source);
    int before = open_copy(path);

    if (strcmp(words[1], "chroot") == 0) {
        char other[1100], name[5000];
        // A root in which the same path is another file.
        snprintf(other, sizeof other, "%s/../other", source);
        CHECK(mkdir(other, 0700) == 0 || errno == EEXIST);
        snprintf(name, sizeof name, "mkdir -p '%s/%s' && echo other > '%s/%s'", other, source, other, path);
        CHECK(system(name) == 0);
        CHECK(chroot(other) == 0);
    } else {
        char data[1100];
        CHECK(unshare(CLONE_NEWNS) == 0);
        CHECK(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
        CHECK(mount("none", source, "tmpfs", 0, NULL) == 0);
        snprintf(data, sizeof data, "echo other > '%s'", path);
        CHECK(system(data) == 0);
    }
    CHECK(holds(path, "other\n"));
    // What was open stays what it was.
    char bytes[16];
    CHECK(read(before, bytes, sizeof bytes) == 7 && memcmp(bytes, "file 1\n", 7) == 0);
    return 0;
}

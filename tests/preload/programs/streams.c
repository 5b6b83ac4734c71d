// Directory streams over listings of the node: they give what the source gives, to threads and to children too.
#include "covered.h"
#include <dirent.h>
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

// More than streams of ours can be open at once.
enum { MANY = 300, ENTRIES_MAX = 1000 };

// Every entry of the source, in its order, by raw calls.
static struct dirent expected[ENTRIES_MAX];
static int entries;

static void list_source(void)
{
    static char bytes[1 << 16];
    int fd = syscall(SYS_openat, AT_FDCWD, ".", O_RDONLY | O_DIRECTORY, 0);
    CHECK(fd >= 0);
    entries = 0;
    for (;;) {
        long filled = syscall(SYS_getdents64, fd, bytes, sizeof bytes);
        CHECK(filled >= 0);
        if (filled == 0) break;
        for (long at = 0; at < filled; entries++) {
            struct dirent *entry = (struct dirent *)(bytes + at);
            CHECK(entries < ENTRIES_MAX && entry->d_reclen <= sizeof *entry);
            memcpy(&expected[entries], entry, entry->d_reclen);
            at += entry->d_reclen;
        }
    }
    close(fd);
}

static int same(const struct dirent *one, const struct dirent *other)
{
    return one->d_ino == other->d_ino && one->d_off == other->d_off && one->d_reclen == other->d_reclen && one->d_type == other->d_type &&
           strcmp(one->d_name, other->d_name) == 0;
}

// A stream over a listing holds no descriptor.
static int is_listing(const char *path, DIR **dir)
{
    int before = open_descriptors();
    *dir = opendir(path);
    CHECK(*dir);
    return open_descriptors() == before;
}

// Opens until a listing answers.
static DIR *open_listing(const char *path)
{
    for (int tries = 0; tries < 12000; tries++) {
        DIR *dir;
        if (is_listing(path, &dir)) return dir;
        CHECK(closedir(dir) == 0);
        usleep(10000);
    }
    CHECK(!"no listing has answered");
    return NULL;
}

static int has(const char *path, const char *name)
{
    DIR *dir = opendir(path);
    CHECK(dir);
    int found = 0;
    for (struct dirent *entry; (entry = readdir(dir));) found |= strcmp(entry->d_name, name) == 0;
    CHECK(closedir(dir) == 0);
    return found;
}

static void reads_all(DIR *dir, int from)
{
    for (int i = from; i < entries; i++) {
        struct dirent *entry = readdir(dir);
        CHECK(entry && same(entry, &expected[i]));
        // As programs do that keep entries: the whole structure, also of the last one.
        struct dirent kept = *entry;
        CHECK(same(&kept, &expected[i]));
    }
    errno = 77;
    CHECK(readdir(dir) == NULL && errno == 77);
    CHECK(readdir(dir) == NULL && errno == 77);
}

static void reads(void)
{
    DIR *dir = open_listing(".");
    reads_all(dir, 0);
    rewinddir(dir);
    for (int i = 0; i < entries; i++) {
        struct dirent64 *entry = readdir64(dir);
        CHECK(entry && same((struct dirent *)entry, &expected[i]));
    }
    CHECK(readdir64(dir) == NULL);
    rewinddir(dir);
    struct dirent room, *result;
    for (int i = 0; i < entries; i++) {
        CHECK(readdir_r(dir, &room, &result) == 0 && result == &room && same(&room, &expected[i]));
    }
    CHECK(readdir_r(dir, &room, &result) == 0 && result == NULL);
    // Entries are the program's to write to.
    rewinddir(dir);
    readdir(dir)->d_name[0] = 'X';
    CHECK(closedir(dir) == 0);
    dir = open_listing(".");
    reads_all(dir, 0);
    CHECK(closedir(dir) == 0);
    const char *spelled[] = {"./", "./.", ".//", getenv("COVERED_SOURCE")};
    for (int i = 0; i < 4; i++) {
        dir = open_listing(spelled[i]);
        reads_all(dir, 0);
        CHECK(closedir(dir) == 0);
    }
}

static void seeks(void)
{
    static long told[ENTRIES_MAX + 1];
    DIR *dir = open_listing(".");
    for (int i = 0; i <= entries; i++) {
        told[i] = telldir(dir);
        CHECK((readdir(dir) != NULL) == (i < entries));
    }
    for (int i = entries; i >= 0; i--) {
        seekdir(dir, told[i]);
        CHECK(telldir(dir) == told[i]);
        reads_all(dir, i);
    }
    // A position that an entry tells.
    seekdir(dir, expected[3].d_off);
    reads_all(dir, 4);
    // Positions are the source's: they go on meaning the same when the stream is the source's.
    DIR *plain = fdopendir(open(".", O_RDONLY | O_DIRECTORY));
    CHECK(plain);
    seekdir(plain, told[5]);
    CHECK(same(readdir(plain), &expected[5]));
    CHECK(closedir(plain) == 0 && closedir(dir) == 0);
}

static void descriptors(void)
{
    int before = open_descriptors();
    DIR *dir = open_listing(".");
    CHECK(readdir(dir));
    int fd = dirfd(dir);
    CHECK(fd >= 0 && dirfd(dir) == fd && (fcntl(fd, F_GETFD) & FD_CLOEXEC));
    struct stat by_fd, by_name, inside;
    CHECK(fstat(fd, &by_fd) == 0 && stat(".", &by_name) == 0);
    CHECK(by_fd.st_dev == by_name.st_dev && by_fd.st_ino == by_name.st_ino);
    CHECK(fstatat(fd, "f3", &inside, 0) == 0 && inside.st_size == 7);
    // It goes on where it was.
    reads_all(dir, 1);
    // What is closed is closed; a compiler would not have it asked.
    DIR *volatile closed = dir;
    CHECK(closedir(dir) == 0 && fcntl(fd, F_GETFD) < 0 && open_descriptors() == before);
    errno = 0;
    CHECK(closedir(closed) == -1 && errno == EBADF);
    errno = 0;
    CHECK(readdir(closed) == NULL && errno == EBADF);
    // In a directory that is not the current one, and from another one.
    dir = open_listing("deep");
    CHECK(chdir("/") == 0);
    CHECK(fstatat(dirfd(dir), "file", &inside, 0) == 0 && inside.st_size == 5);
    CHECK(closedir(dir) == 0 && chdir(getenv("COVERED_SOURCE")) == 0);
}

static void many(void)
{
    static DIR *dirs[MANY];
    int before = open_descriptors(), listings = 0;
    CHECK(closedir(open_listing(".")) == 0);
    for (int i = 0; i < MANY; i++) listings += is_listing(".", &dirs[i]);
    CHECK(listings > 200 && listings < MANY);
    for (int i = 0; i < MANY; i++) {
        reads_all(dirs[i], 0);
        CHECK(closedir(dirs[i]) == 0);
    }
    CHECK(open_descriptors() == before);
    CHECK(closedir(open_listing(".")) == 0);
}

static volatile int done;
static int given[ENTRIES_MAX];

static void *shares(void *dir)
{
    struct dirent *entry;
    while ((entry = readdir(dir))) {
        int i = 0;
        while (i < entries && !same(entry, &expected[i])) i++;
        CHECK(i < entries);
        __atomic_add_fetch(&given[i], 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void *lists(void *nothing)
{
    while (!done) {
        DIR *dir = opendir(".");
        CHECK(dir);
        reads_all(dir, 0);
        CHECK(closedir(dir) == 0);
    }
    return nothing;
}

static void must_end_well(pid_t child)
{
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void threads_and_children(void)
{
    pthread_t threads[4];
    DIR *dir = open_listing(".");
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, shares, dir) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < entries; i++) CHECK(given[i] == 1);
    rewinddir(dir);
    CHECK(same(readdir(dir), &expected[0]) && same(readdir(dir), &expected[1]));
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, lists, NULL) == 0);
    for (int i = 0; i < 50; i++) {
        pid_t child = fork();
        if (child == 0) {
            // One that waits for a lock of ours would wait for ever.
            alarm(120);
            reads_all(dir, 2);
            CHECK(closedir(dir) == 0);
            dir = opendir(".");
            reads_all(dir, 0);
            _exit(closedir(dir));
        }
        must_end_well(child);
    }
    done = 1;
    for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    // What children did with it is none of ours.
    reads_all(dir, 2);
    CHECK(closedir(dir) == 0);
}

// What the program itself changes it sees at once.
static void changes(void)
{
    DIR *dir = open_listing(".");
    CHECK(!has(".", "made"));
    CHECK(mkdir("made", 0755) == 0 && has(".", "made"));
    // An open stream may give what was there; rewound, it must not.
    reads_all(dir, 0);
    list_source();
    rewinddir(dir);
    reads_all(dir, 0);
    seekdir(dir, 0);
    reads_all(dir, 0);
    CHECK(dirfd(dir) >= 0);
    CHECK(closedir(dir) == 0);
    CHECK(rmdir("made") == 0 && !has(".", "made"));
    int fd = creat("made", 0600);
    CHECK(fd >= 0 && close(fd) == 0 && has(".", "made"));
    CHECK(rename("made", "moved") == 0 && !has(".", "made") && has(".", "moved"));
    CHECK(link("moved", "made") == 0 && has(".", "made"));
    CHECK(unlink("moved") == 0 && !has(".", "moved"));
    CHECK(symlink("f1", "moved") == 0 && has(".", "moved"));
    CHECK(remove("moved") == 0 && !has(".", "moved"));
    CHECK(mkfifo("moved", 0600) == 0 && has(".", "moved"));
    CHECK(unlinkat(AT_FDCWD, "moved", 0) == 0 && !has(".", "moved"));
    CHECK(mknod("moved", S_IFREG | 0600, 0) == 0 && has(".", "moved"));
    char directory[] = "dir_XXXXXX", file_name[] = "file_XXXXXX.end";
    CHECK(mkdtemp(directory) && has(".", directory));
    fd = mkstemps(file_name, 4);
    CHECK(fd >= 0 && close(fd) == 0 && has(".", file_name));
    fd = open("deep/new", O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(fd >= 0 && close(fd) == 0 && has("deep", "new"));
    FILE *file = fopen("deep/newer", "w");
    CHECK(file && fclose(file) == 0 && has("deep", "newer"));
    CHECK(rename("deep", "deeper") == 0 && has("deeper", "new") && opendir("deep") == NULL && errno == ENOENT);
}

int main(int count, char **words)
{
    CHECK(count == 2);
    list_source();
    CHECK(entries > 40);
    if (strcmp(words[1], "changes") == 0) {
        CHECK(closedir(open_listing("deep")) == 0);
        changes();
        return 0;
    }
    reads();
    seeks();
    descriptors();
    many();
    threads_and_children();
    return 0;
}

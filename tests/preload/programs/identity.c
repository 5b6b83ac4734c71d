// Every way to ask a descriptor or a name what it is says what the source says; the program prints how many questions
// about names a copy can answer.
#include "covered.h"
#include <sys/sysmacros.h>

int __xstat(int version, const char *path, struct stat *out);
int __xstat64(int version, const char *path, struct stat *out);
int __lxstat(int version, const char *path, struct stat *out);
int __lxstat64(int version, const char *path, struct stat *out);
int __fxstatat64(int version, int fd, const char *path, struct stat *out, int flags);
int __fxstat(int version, int fd, struct stat *out);
int __fxstatat(int version, int fd, const char *path, struct stat *out, int flags);
#ifdef __x86_64__
#define STAT_VERSION 1
#else
#define STAT_VERSION 0
#endif

static int answerable;
// A place that can't be written to.
static void *volatile nowhere = (void *)16;

// What the source says of a name; no library stands in between.
static void ask_source(const char *path, struct stat *out, int flags)
{
    CHECK(syscall(SYS_newfstatat, AT_FDCWD, path, out, flags) == 0);
}

static void same(const struct stat *one, const struct stat *two)
{
    CHECK(one->st_dev == two->st_dev && one->st_ino == two->st_ino && one->st_mode == two->st_mode);
    CHECK(one->st_nlink == two->st_nlink && one->st_uid == two->st_uid && one->st_gid == two->st_gid);
    CHECK(one->st_size == two->st_size && one->st_blksize == two->st_blksize && one->st_blocks == two->st_blocks);
    CHECK(memcmp(&one->st_mtim, &two->st_mtim, sizeof one->st_mtim) == 0);
    CHECK(memcmp(&one->st_ctim, &two->st_ctim, sizeof one->st_ctim) == 0);
}

static void same_x(const struct statx *out, const struct stat *name)
{
    CHECK(makedev(out->stx_dev_major, out->stx_dev_minor) == name->st_dev && out->stx_ino == name->st_ino);
    CHECK(out->stx_mode == name->st_mode && out->stx_nlink == name->st_nlink && out->stx_uid == name->st_uid);
    CHECK(out->stx_size == (unsigned long long)name->st_size && out->stx_blocks == (unsigned long long)name->st_blocks);
    CHECK(out->stx_mtime.tv_sec == name->st_mtim.tv_sec && out->stx_mtime.tv_nsec == (unsigned)name->st_mtim.tv_nsec);
    CHECK(out->stx_ctime.tv_sec == name->st_ctim.tv_sec && out->stx_ctime.tv_nsec == (unsigned)name->st_ctim.tv_nsec);
}

static void agrees(int fd, const char *path)
{
    struct stat name, out;
    struct statx outx;
    ask_source(path, &name, 0);
    CHECK(fstat(fd, &out) == 0);
    same(&out, &name);
    CHECK(fstat64(fd, (struct stat64 *)&out) == 0);
    same(&out, &name);
    CHECK(fstatat(fd, "", &out, AT_EMPTY_PATH) == 0);
    same(&out, &name);
    CHECK(fstatat64(fd, "", (struct stat64 *)&out, AT_EMPTY_PATH) == 0);
    same(&out, &name);
    CHECK(__fxstat(STAT_VERSION, fd, &out) == 0);
    same(&out, &name);
    CHECK(__fxstatat(STAT_VERSION, fd, "", &out, AT_EMPTY_PATH) == 0);
    same(&out, &name);
    CHECK(statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME, &outx) == 0);
    same_x(&outx, &name);
    // The kernel may leave out what was not asked for.
    CHECK(statx(fd, "", AT_EMPTY_PATH, STATX_SIZE | STATX_INO, &outx) == 0);
    CHECK(outx.stx_size == (unsigned long long)name.st_size && outx.stx_ino == name.st_ino);
}

#define ASK(call)                                  \
    do {                                           \
        struct stat out;                           \
        memset(&out, 0xAA, sizeof out);            \
        errno = 77;                                \
        CHECK((call) == 0 && errno == 77);         \
        same(&out, &name);                         \
        CHECK(out.st_rdev == name.st_rdev);        \
        answerable += is_answerable;               \
    } while (0)

static void says(const char *path, int is_answerable)
{
    struct stat name;
    ask_source(path, &name, 0);
    ASK(stat(path, &out));
    ASK(stat64(path, (struct stat64 *)&out));
    ASK(fstatat(AT_FDCWD, path, &out, 0));
    ASK(fstatat64(AT_FDCWD, path, (struct stat64 *)&out, AT_NO_AUTOMOUNT));
    ASK(__xstat(STAT_VERSION, path, &out));
    ASK(__xstat64(STAT_VERSION, path, &out));
    ASK(__xstat(0, path, &out));
    ASK(__fxstatat(STAT_VERSION, AT_FDCWD, path, &out, 0));
    ASK(__fxstatat64(STAT_VERSION, AT_FDCWD, path, &out, 0));
    for (int mode = 0; mode < 8; mode++) {
        long truth = syscall(SYS_faccessat, AT_FDCWD, path, mode);
        int refused = errno;
        CHECK(access(path, mode) == truth && (truth == 0 || errno == refused));
        CHECK(faccessat(AT_FDCWD, path, mode, 0) == truth && (truth == 0 || errno == refused));
        answerable += mode == F_OK || mode == R_OK ? 2 * is_answerable : 0;
    }
    CHECK(access(path, 8) == -1 && errno == EINVAL);
    struct statx outx;
    for (int flags = 0; flags <= AT_STATX_DONT_SYNC; flags += AT_STATX_DONT_SYNC) {
        CHECK(statx(AT_FDCWD, path, flags, STATX_BASIC_STATS, &outx) == 0);
        same_x(&outx, &name);
        CHECK((outx.stx_mask & STATX_BASIC_STATS) == STATX_BASIC_STATS);
        CHECK(statx(AT_FDCWD, path, flags, STATX_SIZE, &outx) == 0 && outx.stx_size == (unsigned long long)name.st_size);
        answerable += 2 * is_answerable;
    }
}

static void says_itself(const char *path, int is_answerable)
{
    struct stat name;
    ask_source(path, &name, AT_SYMLINK_NOFOLLOW);
    ASK(lstat(path, &out));
    ASK(lstat64(path, (struct stat64 *)&out));
    ASK(fstatat(AT_FDCWD, path, &out, AT_SYMLINK_NOFOLLOW));
    ASK(__lxstat(STAT_VERSION, path, &out));
    ASK(__lxstat64(STAT_VERSION, path, &out));
    ASK(__fxstatat(STAT_VERSION, AT_FDCWD, path, &out, AT_SYMLINK_NOFOLLOW));
}

// What only the source can say, it is asked for.
static void is_not_answered(const char *path)
{
    struct stat name, out;
    struct statx outx;
    char slashed[64];
    int here = open(".", O_RDONLY | O_DIRECTORY);
    ask_source(path, &name, 0);
    CHECK(fstatat(here, path, &out, 0) == 0 && faccessat(here, path, R_OK, 0) == 0);
    same(&out, &name);
    CHECK(statx(AT_FDCWD, path, AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, &outx) == 0);
    same_x(&outx, &name);
    CHECK(statx(AT_FDCWD, path, 0, STATX_BASIC_STATS | STATX_BTIME, &outx) == 0);
    same_x(&outx, &name);
    CHECK(faccessat(AT_FDCWD, path, R_OK, AT_EACCESS) == 0);
    snprintf(slashed, sizeof slashed, "%s/", path);
    CHECK(stat(slashed, &out) == -1 && errno == ENOTDIR);
    CHECK(access(slashed, F_OK) == -1 && errno == ENOTDIR);
    CHECK(stat("", &out) == -1 && errno == ENOENT);
    CHECK(fstatat(AT_FDCWD, path, &out, 1 << 30) == -1 && errno == EINVAL);
    CHECK(stat(path, nowhere) == -1 && errno == EFAULT);
    CHECK(statx(AT_FDCWD, path, 0, STATX_BASIC_STATS, nowhere) == -1 && errno == EFAULT);
    close(here);
}

int main(void)
{
    int fd = open_copy("f1");
    struct stat raw, name;
    CHECK(syscall(SYS_fstat, fd, &raw) == 0);
    ask_source("f1", &name, 0);
    CHECK(raw.st_ino != name.st_ino || raw.st_dev != name.st_dev);
    agrees(fd, "f1");
    agrees(dup(fd), "f1");
    agrees(open_copy("link"), "link");
    agrees(open("/etc/hostname", O_RDONLY), "/etc/hostname");
    FILE *file = fopen("f2", "r");
    CHECK(file && is_copy(fileno(file)));
    agrees(fileno(file), "f2");
    says("f1", 1);
    says_itself("f1", 1);
    says("link", 1);
    says_itself("link", 0);
    says("/etc/hostname", 0);
    says_itself("/etc/hostname", 0);
    is_not_answered("f1");
    CHECK(fstat(-1, &raw) == -1 && errno == EBADF);
    CHECK(fstatat(fd, "", &raw, 0) == -1 && errno == ENOENT);
    printf("%d\n", answerable);
    return 0;
}

// Every way to ask a descriptor what it is gives the same file as asking its name.
#include "door.h"
#include <sys/sysmacros.h>

int __fxstat(int version, int fd, struct stat *out);
int __fxstatat(int version, int fd, const char *path, struct stat *out, int flags);
#ifdef __x86_64__
#define STAT_VERSION 1
#else
#define STAT_VERSION 0
#endif

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
    CHECK(stat(path, &name) == 0);
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

int main(void)
{
    int fd = open_copy("f1");
    struct stat raw, name;
    CHECK(syscall(SYS_fstat, fd, &raw) == 0 && stat("f1", &name) == 0);
    CHECK(raw.st_ino != name.st_ino || raw.st_dev != name.st_dev);
    agrees(fd, "f1");
    agrees(dup(fd), "f1");
    agrees(open_copy("link"), "link");
    agrees(open("/etc/hostname", O_RDONLY), "/etc/hostname");
    FILE *file = fopen("f2", "r");
    CHECK(file && is_copy(fileno(file)));
    agrees(fileno(file), "f2");
    CHECK(fstat(-1, &raw) == -1 && errno == EBADF);
    CHECK(fstatat(fd, "", &raw, 0) == -1 && errno == ENOENT);
    return 0;
}

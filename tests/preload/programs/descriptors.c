// Descriptors closed, replaced and left behind the preload library's back: it keeps none, so nothing can be lost.
#include "covered.h"
#include <setjmp.h>

static sigjmp_buf back;
static void jump(int number) { siglongjmp(back, number); }

static void *opens_for_ever(void *name)
{
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
    for (;;) {
        int fd;
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
        fd = open(name, O_RDONLY);
        close(fd);
        pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
        pthread_testcancel();
    }
    return NULL;
}

int main(void)
{
    close(open_copy("f1"));
    CHECK(open_descriptors() == 3);

    CHECK(syscall(SYS_close_range, 3, ~0U, 0) == 0);
    CHECK(holds("f1", "file 1\n") && is_copy(open("f1", O_RDONLY)));

    // Over a copy's descriptor, and a copy's descriptor over another.
    int copy = open("f2", O_RDONLY), other = open("/etc/hostname", O_RDONLY);
    CHECK(dup2(other, copy) == copy);
    struct stat one, two;
    CHECK(fstat(copy, &one) == 0 && stat("/etc/hostname", &two) == 0 && one.st_ino == two.st_ino && one.st_dev == two.st_dev);
    copy = open("f2", O_RDONLY);
    CHECK(dup2(copy, other) == other);
    CHECK(fstat(other, &one) == 0 && stat("f2", &two) == 0 && one.st_ino == two.st_ino && one.st_dev == two.st_dev);
    CHECK(syscall(SYS_close_range, 3, ~0U, 0) == 0);

    // Out of the middle of whatever the preload library is doing; the program itself may leave a descriptor so, but not
    // many.
    signal(SIGALRM, jump);
    for (volatile int i = 0; i < 300; i++) {
        if (sigsetjmp(back, 1) == 0) {
            struct itimerval soon = {{0, 0}, {0, 50}};
            setitimer(ITIMER_REAL, &soon, NULL);
            for (;;) {
                int fd = open("f3", O_RDONLY);
                close(fd);
            }
        }
    }
    CHECK(holds("f3", "file 3\n"));
    CHECK(syscall(SYS_close_range, 3, ~0U, 0) == 0);

    for (int i = 0; i < 50; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, opens_for_ever, "f4") == 0);
        usleep(500);
        CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, NULL) == 0);
    }
    CHECK(open_descriptors() == 3);

    // With no descriptor to be had the program sees its own error, and then all is as before.
    int last = 0;
    for (int fd; (fd = open("/dev/null", O_RDONLY)) >= 0;) last = fd;
    CHECK(errno == EMFILE && open("f5", O_RDONLY) == -1 && errno == EMFILE);
    close(last);
    CHECK(is_copy(open("f5", O_RDONLY)));
    return 0;
}

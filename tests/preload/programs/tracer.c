// Another library that stands before open by name, as Darshan's does: it counts what is asked for, and hands it on to
// the next.
#include "covered.h"
#include <dlfcn.h>
#include <stdarg.h>

static int opens, fopens, stats;

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define OPEN(name)                                   \
    int name(const char *path, int flags, ...)       \
    {                                                \
        va_list arguments;                           \
        va_start(arguments, flags);                  \
        mode_t mode = va_arg(arguments, mode_t);     \
        va_end(arguments);                           \
        opens++;                                     \
        return NEXT(name)(path, flags, mode);        \
    }
#define FOPEN(name)                                  \
    FILE *name(const char *path, const char *mode)   \
    {                                                \
        fopens++;                                    \
        return NEXT(name)(path, mode);               \
    }

OPEN(open)
OPEN(open64)
FOPEN(fopen)
FOPEN(fopen64)

int fstat(int fd, struct stat *status)
{
    stats++;
    return NEXT(fstat)(fd, status);
}

__attribute__((destructor)) static void tell(void)
{
    int mark = creat(getenv("TRACER_MARK"), 0600);
    CHECK(mark >= 0 && dprintf(mark, "%d %d %d", opens, fopens, stats) > 0);
}

// Loads a library that opens from its constructor, and unloads it.
#include "covered.h"
#include <dlfcn.h>

int main(int count, char **words)
{
    CHECK(count == 2);
    close(open_copy("f1"));
    void *library = dlopen(words[1], RTLD_NOW);
    CHECK(library);
    CHECK(dlclose(library) == 0);
    return 0;
}

// Streams that write, one of them a stream that was reading a copy.
#include "covered.h"

int main(void)
{
    int one = open_copy("f1");
    FILE *file = fopen("f1", "r+");
    CHECK(file && !is_copy(fileno(file)) && fputc('F', file) == 'F' && fclose(file) == 0);
    CHECK(holds("f1", "File 1\n"));
    char bytes[16];
    CHECK(read(one, bytes, sizeof bytes) == 7 && memcmp(bytes, "file 1\n", 7) == 0);

    // Without a name: the stream's own file is opened again, which must not be the copy.
    int two = open_copy("f2");
    file = fopen("f2", "r");
    CHECK(file && is_copy(fileno(file)));
    CHECK(freopen(NULL, "w", file) == file && !is_copy(fileno(file)));
    CHECK(fputs("Again 2\n", file) >= 0 && fclose(file) == 0);
    CHECK(holds("f2", "Again 2\n"));
    CHECK(read(two, bytes, sizeof bytes) == 7 && memcmp(bytes, "file 2\n", 7) == 0);
    return 0;
}

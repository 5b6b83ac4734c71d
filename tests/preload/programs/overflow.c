// Writes past the end of what it has allocated.
#include <stdlib.h>

int main(void)
{
    volatile int at = 8;
    volatile char *block = malloc(8);
    block[at] = 1;
    free((void *)block);
    return 0;
}

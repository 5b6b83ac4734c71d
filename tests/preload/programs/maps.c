// Whether the preload library is in this process.
#include <stdio.h>
#include <string.h>

int main(void)
{
    char line[4096];
    FILE *maps = fopen("/proc/self/maps", "r");
    if (!maps) return 1;
    while (fgets(line, sizeof line, maps))
        if (strstr(line, "forebay_preload")) return puts("covered") < 0;
    return puts("not covered") < 0;
}

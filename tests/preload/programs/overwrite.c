/* overwrite FILE ... TEXT: writes the last argument into a file. */
#include <stdio.h>

int main(int count, char **words)
{
    FILE *file = count < 3 ? NULL : fopen(words[1], "w");
    return file == NULL || fputs(words[count - 1], file) < 0 || fclose(file) != 0;
}

/* Starts, opens the files that are named, and ends. */
#include <fcntl.h>

int main(int words, char **word) {
    for (int number = 1; number < words; number++)
        if (open(word[number], O_RDONLY) < 0)
            return 1;
    return 0;
}

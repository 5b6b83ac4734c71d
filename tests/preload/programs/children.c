/* children WAY OVERWRITE FILE TEXT: has a program write the file, and prints what the file held before and holds after. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static void show(const char *path)
{
    char text[64];
    int file = open(path, O_RDONLY);
    ssize_t count = read(file, text, sizeof text);
    close(file);
    if (count < 0 || fwrite(text, 1, (size_t)count, stdout) != (size_t)count)
        exit(3);
}

static const char *way, *program, *file, *text;

static int is(const char *other)
{
    return strcmp(way, other) == 0;
}

static pid_t start(void)
{
    char *words[] = {(char *)program, (char *)file, (char *)text, NULL};
    pid_t child;
    if (is("spawn"))
        return posix_spawn(&child, program, NULL, NULL, words, environ) ? -1 : child;
    if ((child = is("vfork") ? vfork() : fork()) != 0)
        return child;
    if (is("execl"))
        execl(program, program, file, "1", "2", "3", "4", "5", "6", "7", text, NULL);
    else if (is("execlp"))
        execlp(program, program, file, "1", "2", "3", "4", "5", "6", "7", text, NULL);
    else if (is("execle"))
        execle(program, program, file, "1", "2", "3", "4", "5", "6", "7", text, NULL, environ);
    else if (is("execvp"))
        execvp(program, words);
    else if (is("fexecve"))
        fexecve(open(program, O_RDONLY | O_CLOEXEC), words, environ);
    else if (is("shell"))
        execl("/bin/sh", "sh", "-c", "exec \"$0\" \"$1\" \"$2\"", program, file, text, NULL);
    else if (is("clear"))
        execle("/bin/sh", "sh", "-c", "printf %s \"$2\" >\"$1\"", "sh", file, text, NULL, (char *[]){NULL});
    else
        execv(program, words);
    _exit(127);
}

int main(int count, char **words)
{
    char command[4096];
    int status = 0;
    if (count != 5)
        return 2;
    way = words[1], program = words[2], file = words[3], text = words[4];
    show(file);
    snprintf(command, sizeof command, "exec %s %s %s", program, file, text);
    if (is("system"))
        status = system(command);
    else if (is("popen"))
        status = pclose(popen(command, "r"));
    else {
        if (is("ignored"))
            signal(SIGCHLD, SIG_IGN);
        pid_t child = start();
        if (child < 0)
            return 4;
        if (is("wait"))
            wait(NULL);
        else if (is("wait3"))
            wait3(&status, 0, NULL);
        else if (is("wait4"))
            wait4(child, &status, 0, &(struct rusage){0});
        else if (is("waitid"))
            waitid(P_PID, (id_t)child, NULL, WEXITED);
        else
            waitpid(child, &status, 0);
    }
    show(file);
    return status != 0;
}

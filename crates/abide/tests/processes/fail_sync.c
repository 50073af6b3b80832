// Preloaded into a worker: while the file $ABIDE_FAIL_SYNC exists, no write-ahead log can be synced, or no folder if the
// file says "folder". Each sync takes $ABIDE_SLOW_SYNC_MS longer than it would.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int fails(int fd) {
    const char *when = getenv("ABIDE_FAIL_SYNC");
    int file = when ? open(when, O_RDONLY) : -1;
    if (file < 0)
        return 0;
    char what;
    int is_folder = read(file, &what, 1) == 1 && what == 'f';
    close(file);
    struct stat status;
    if (is_folder)
        return fstat(fd, &status) == 0 && S_ISDIR(status.st_mode);
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 4)
        return 0;
    path[length] = 0;
    return strcmp(path + length - 4, "-wal") == 0;
}

static int sync_by(const char *name, int fd) {
    if (fails(fd)) {
        errno = EIO;
        return -1;
    }
    const char *slow_ms = getenv("ABIDE_SLOW_SYNC_MS");
    if (slow_ms)
        usleep(1000 * atoi(slow_ms));
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    return real(fd);
}

int fsync(int fd) { return sync_by("fsync", fd); }
int fdatasync(int fd) { return sync_by("fdatasync", fd); }

/* Calls that fail once, for tests/faulty.py, whose process loads this file before the C library (LD_PRELOAD).
 *
 * Allocations are counted and fail if the code that asks lies in one of the watched ranges of addresses. Reads, writes
 * and what else changes files are counted and fail if they concern a file in the watched folder. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

enum { RANGES = 256, SHORT = -1, NEVER = -1 };

static struct { const char *first, *last; } ranges[RANGES];
static int range_count;
static char folder[4096];
static atomic_long memory_calls, file_calls;
static long memory_fails = NEVER, file_fails = NEVER;
static int file_error; /* an errno, or SHORT */

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

void watch_code(const char *first, const char *last) {
    if (range_count < RANGES) ranges[range_count].first = first, ranges[range_count++].last = last;
}
void watch_folder(const char *path) { snprintf(folder, sizeof folder, "%s", path); }
void fail_memory(long call) { memory_fails = call, memory_calls = 0; }
void fail_file(long call, int error) { file_fails = call, file_error = error, file_calls = 0; }
long calls_of_memory(void) { return memory_calls; }
long calls_of_files(void) { return file_calls; }

static int memory_is_short(const void *code) {
    for (int i = 0; i < range_count; i++)
        if ((const char *)code >= ranges[i].first && (const char *)code < ranges[i].last)
            return memory_calls++ == memory_fails;
    return 0;
}

void *malloc(size_t size) { return memory_is_short(__builtin_return_address(0)) ? NULL : __libc_malloc(size); }
void *calloc(size_t count, size_t size) {
    return memory_is_short(__builtin_return_address(0)) ? NULL : __libc_calloc(count, size);
}
void *realloc(void *block, size_t size) {
    return memory_is_short(__builtin_return_address(0)) ? NULL : __libc_realloc(block, size);
}
int posix_memalign(void **block, size_t alignment, size_t size) {
    *block = memory_is_short(__builtin_return_address(0)) ? NULL : __libc_memalign(alignment, size);
    return *block ? 0 : ENOMEM;
}

/* ---- files */

static int is_watched(const char *path) { return *folder && strncmp(path, folder, strlen(folder)) == 0; }

/* Whether this call on a path fails. */
static int path_fails(const char *path) { return is_watched(path) && file_calls++ == file_fails; }

static int file_is_chosen(int file) {
    char link[64], path[4096];
    if (!*folder) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    const ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return path_fails(path);
}

#define REAL(NAME, TYPE, ...) ((TYPE (*)(__VA_ARGS__))dlsym(RTLD_NEXT, NAME))

/* A call on `count` bytes: fewer of them, an error, or all. */
#define BYTES(NAME, PARAMETERS, TYPES, LESS, ALL)                                    \
    ssize_t NAME PARAMETERS {                                                        \
        ssize_t (*const real) TYPES = (ssize_t (*) TYPES)dlsym(RTLD_NEXT, #NAME);    \
        if (!file_is_chosen(file)) return real ALL;                                  \
        if (file_error == SHORT) return real LESS;                                   \
        errno = file_error;                                                          \
        return -1;                                                                   \
    }

BYTES(read, (int file, void *to, size_t n), (int, void *, size_t), (file, to, (n + 1) / 2), (file, to, n))
BYTES(write, (int file, const void *at, size_t n), (int, const void *, size_t), (file, at, (n + 1) / 2), (file, at, n))
BYTES(pread, (int file, void *to, size_t n, off_t place), (int, void *, size_t, off_t), (file, to, (n + 1) / 2, place),
      (file, to, n, place))
BYTES(pwrite, (int file, const void *at, size_t n, off_t place), (int, const void *, size_t, off_t),
      (file, at, (n + 1) / 2, place), (file, at, n, place))
BYTES(pread64, (int file, void *to, size_t n, off_t place), (int, void *, size_t, off_t),
      (file, to, (n + 1) / 2, place), (file, to, n, place))
BYTES(pwrite64, (int file, const void *at, size_t n, off_t place), (int, const void *, size_t, off_t),
      (file, at, (n + 1) / 2, place), (file, at, n, place))

/* Of a vector of buffers, a short read fills half of the first. */
static ssize_t read_vector(const char *name, int file, const struct iovec *to, int count, off_t place) {
    ssize_t (*const real)(int, const struct iovec *, int, off_t)
        = (ssize_t (*)(int, const struct iovec *, int, off_t))dlsym(RTLD_NEXT, name);
    if (!file_is_chosen(file)) return real(file, to, count, place);
    const struct iovec half = {to->iov_base, (to->iov_len + 1) / 2};
    if (file_error == SHORT) return real(file, &half, 1, place);
    errno = file_error;
    return -1;
}
ssize_t preadv(int file, const struct iovec *to, int count, off_t place) {
    return read_vector("preadv", file, to, count, place);
}
ssize_t preadv64(int file, const struct iovec *to, int count, off_t place) {
    return read_vector("preadv64", file, to, count, place);
}

/* Calls that do all or nothing: these fail by EACCES where others would be short. */
static int refused(void) {
    errno = file_error == SHORT ? EACCES : file_error;
    return -1;
}
int fsync(int file) { return file_is_chosen(file) ? refused() : REAL("fsync", int, int)(file); }
int ftruncate(int file, off_t size) {
    return file_is_chosen(file) ? refused() : REAL("ftruncate", int, int, off_t)(file, size);
}
int ftruncate64(int file, off_t size) {
    return file_is_chosen(file) ? refused() : REAL("ftruncate64", int, int, off_t)(file, size);
}
static int open_by(const char *name, const char *path, int flags, int mode) {
    return path_fails(path) ? refused() : REAL(name, int, const char *, int, int)(path, flags, mode);
}
#define OPEN(NAME)                                      \
    int NAME(const char *path, int flags, ...) {        \
        va_list rest;                                   \
        va_start(rest, flags);                          \
        const int mode = va_arg(rest, int);             \
        va_end(rest);                                   \
        return open_by(#NAME, path, flags, mode);       \
    }
OPEN(open)
OPEN(open64)

/* Those below are never interrupted. A call by a name fails if that is watched, and one by a name in an open folder if
 * that folder is. */
static int is_failing(int file, const char *path) {
    const int chosen = path && (*path == '/' || file == AT_FDCWD) ? path_fails(path) : file_is_chosen(file);
    return chosen && file_error != EINTR;
}
#define REFUSABLE(TYPE, FAILURE, NAME, FILE, PATH, PARAMETERS, TYPES, ARGUMENTS)      \
    TYPE NAME PARAMETERS {                                                            \
        TYPE (*const real) TYPES = (TYPE (*) TYPES)dlsym(RTLD_NEXT, #NAME);           \
        if (!is_failing(FILE, PATH)) return real ARGUMENTS;                           \
        refused();                                                                    \
        return FAILURE;                                                               \
    }

#define BY_NAME(NAME, PARAMETERS, TYPES, ARGUMENTS) \
    REFUSABLE(int, -1, NAME, AT_FDCWD, path, PARAMETERS, TYPES, ARGUMENTS)
#define IN_FOLDER(NAME, PARAMETERS, TYPES, ARGUMENTS) REFUSABLE(int, -1, NAME, in, path, PARAMETERS, TYPES, ARGUMENTS)
struct found;
BY_NAME(rename, (const char *path, const char *to), (const char *, const char *), (path, to))
BY_NAME(mkdir, (const char *path, unsigned mode), (const char *, unsigned), (path, mode))
BY_NAME(rmdir, (const char *path), (const char *), (path))
BY_NAME(unlink, (const char *path), (const char *), (path))
BY_NAME(stat64, (const char *path, struct found *to), (const char *, struct found *), (path, to))
BY_NAME(lstat64, (const char *path, struct found *to), (const char *, struct found *), (path, to))
BY_NAME(statvfs64, (const char *path, struct found *to), (const char *, struct found *), (path, to))
IN_FOLDER(unlinkat, (int in, const char *path, int flags), (int, const char *, int), (in, path, flags))
IN_FOLDER(fstatat64, (int in, const char *path, struct found *to, int flags),
          (int, const char *, struct found *, int), (in, path, to, flags))
REFUSABLE(int, -1, fstat64, file, NULL, (int file, struct found *to), (int, struct found *), (file, to))
REFUSABLE(DIR *, NULL, opendir, AT_FDCWD, path, (const char *path), (const char *), (path))
REFUSABLE(DIR *, NULL, fdopendir, file, NULL, (int file), (int), (file))
REFUSABLE(struct dirent64 *, NULL, readdir64, dirfd(folder), NULL, (DIR *folder), (DIR *), (folder))
REFUSABLE(void *, MAP_FAILED, mmap64, file, NULL, (void *at, size_t n, int access, int flags, int file, off_t place),
          (void *, size_t, int, int, int, off_t), (at, n, access, flags, file, place))
REFUSABLE(ssize_t, -1, sendfile64, to, NULL, (int to, int from, off_t *place, size_t n), (int, int, off_t *, size_t),
          (to, from, place, n))

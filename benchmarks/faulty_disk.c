/* Disk that fails, for LD_PRELOAD: changes below $FAULTY_FOLDER fail, or are recorded.

   $FAULTY_COUNTS is a file of two 64-bit numbers, shared by all processes: changes so far, and
   failures. $FAULTY_KIND: "full" fails all that needs room from change $FAULTY_AT on with ENOSPC,
   "io" fails one change with EIO, "short" writes half of one write. $FAULTY_LOG records each change
   as a line, "op first-path second-path offset size" with tabs, and the bytes of a write after it.
   Writes through maps of memory and of C streams (fopen) are not seen. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static const char *folder, *kind = "";
static int64_t at = INT64_MAX, *counts;
static int log_to = -1;

__attribute__((constructor)) static void start(void) {
  folder = getenv("FAULTY_FOLDER");
  const char *file = getenv("FAULTY_COUNTS"), *log = getenv("FAULTY_LOG");
  if (!folder || !file) { folder = NULL; return; }
  int fd = syscall(SYS_openat, AT_FDCWD, file, O_RDWR, 0);
  counts = mmap(NULL, 16, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  syscall(SYS_close, fd);
  if (counts == MAP_FAILED) abort();
  if (getenv("FAULTY_KIND")) kind = getenv("FAULTY_KIND");
  if (getenv("FAULTY_AT")) at = atoll(getenv("FAULTY_AT"));
  if (log) log_to = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

/* Absolute path of an open file, or of a path relative to one; 0 if it is not below the folder. */
static int place(int fd, const char *path, char *out) {
  char link[64], base[PATH_MAX] = "";
  if (!folder) return 0;
  if (!path || path[0] != '/') {
    if (fd == AT_FDCWD) strcpy(link, "/proc/self/cwd");
    else snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, base, PATH_MAX - 1);
    if (n < 0) return 0;
    base[n] = 0;
  }
  if (!path) snprintf(out, PATH_MAX, "%s", base);
  else if (path[0] == '/') snprintf(out, PATH_MAX, "%s", path);
  else if (snprintf(out, PATH_MAX, "%s/%s", base, path) >= PATH_MAX) return 0;
  size_t n = strlen(folder);
  return strncmp(out, folder, n) == 0 && (out[n] == '/' || !out[n]);
}

/* Count a change; whether it is to fail. Errno is set then. */
static int fails(int needs_room, size_t size) {
  if (!strcmp(kind, "full") && !needs_room) return 0;
  if (!strcmp(kind, "short") && size < 2) return 0;
  int64_t now = __atomic_add_fetch(counts, 1, __ATOMIC_SEQ_CST);
  if (!strcmp(kind, "full") ? now < at : now != at) return 0;
  if (kind[0]) __atomic_add_fetch(counts + 1, 1, __ATOMIC_SEQ_CST);
  errno = !strcmp(kind, "full") ? ENOSPC : EIO;
  return kind[0] != 0;
}

static void record(const char *op, const char *one, const char *two, int64_t offset,
                   const void *data, int64_t size) {
  if (log_to < 0) return;
  int kept = errno;
  char head[2 * PATH_MAX + 64];
  int n = snprintf(head, sizeof head, "%s\t%s\t%s\t%lld\t%lld\n", op, one, two, (long long)offset,
                   (long long)size);
  struct iovec parts[2] = {{head, n}, {(void *)data, data ? size : 0}};
  syscall(SYS_writev, log_to, parts, 2); /* appended as a whole */
  errno = kept;
}

static ssize_t written(int fd, const void *data, size_t size, int64_t offset) {
  char path[PATH_MAX];
  int ours = size && place(fd, NULL, path);
  if (ours && fails(1, size)) {
    if (strcmp(kind, "short")) return -1;
    size /= 2;
  }
  ssize_t n = offset < 0 ? syscall(SYS_write, fd, data, size)
                         : syscall(SYS_pwrite64, fd, data, size, offset);
  if (ours && n > 0)
    record("write", path, "", offset < 0 ? lseek(fd, 0, SEEK_CUR) - n : offset, data, n);
  return n;
}

ssize_t write(int fd, const void *data, size_t size) { return written(fd, data, size, -1); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t at_) { return written(fd, data, size, at_); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at_) { return written(fd, data, size, at_); }

/* One part after the other, which callers take for a short write where a part fails. */
static ssize_t gathered(int fd, const struct iovec *parts, int count, int64_t offset) {
  ssize_t total = 0;
  for (int i = 0; i < count; i++) {
    if (!parts[i].iov_len) continue;
    ssize_t n = written(fd, parts[i].iov_base, parts[i].iov_len, offset < 0 ? -1 : offset + total);
    if (n < 0) return total ? total : n;
    total += n;
    if ((size_t)n < parts[i].iov_len) break;
  }
  return total;
}
ssize_t writev(int fd, const struct iovec *parts, int count) { return gathered(fd, parts, count, -1); }
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t o) { return gathered(fd, parts, count, o); }
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t o) { return gathered(fd, parts, count, o); }

/* Callers copy by reads and writes where these are not there. */
ssize_t sendfile(int to, int from, off_t *o, size_t n) { errno = EINVAL; return -1; }
ssize_t sendfile64(int to, int from, off64_t *o, size_t n) { errno = EINVAL; return -1; }
ssize_t copy_file_range(int f, off64_t *a, int t, off64_t *b, size_t n, unsigned l) { errno = ENOSYS; return -1; }

static int opened(int base, const char *name, int flags, mode_t mode) {
  char path[PATH_MAX];
  struct stat found;
  int writes = (flags & O_ACCMODE) != O_RDONLY, ours = writes && place(base, name, path);
  int is_new = ours && (flags & O_CREAT) && syscall(SYS_newfstatat, base, name, &found, 0) < 0;
  if (is_new && fails(1, 0)) return -1;
  int fd = syscall(SYS_openat, base, name, flags, mode);
  if (fd >= 0 && ours && (is_new || (flags & O_TRUNC)))
    record(is_new ? "create" : "truncate", path, "", 0, NULL, 0);
  return fd;
}
#define MODE(flags) \
  mode_t mode = 0; \
  if ((flags) & (O_CREAT | __O_TMPFILE)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); }
int open(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int openat(int fd, const char *path, int flags, ...) { MODE(flags) return opened(fd, path, flags, mode); }
int openat64(int fd, const char *path, int flags, ...) { MODE(flags) return opened(fd, path, flags, mode); }
int creat(const char *path, mode_t mode) { return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

static int synced(int fd, long number) {
  char path[PATH_MAX];
  int ours = place(fd, NULL, path);
  if (ours && fails(0, 0)) return -1;
  int status = syscall(number, fd);
  if (ours && !status) record("sync", path, "", 0, NULL, 0);
  return status;
}
int fsync(int fd) { return synced(fd, SYS_fsync); }
int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }

int ftruncate(int fd, off_t size) {
  char path[PATH_MAX];
  int ours = place(fd, NULL, path);
  if (ours && fails(0, 0)) return -1;
  int status = syscall(SYS_ftruncate, fd, size);
  if (ours && !status) record("truncate", path, "", size, NULL, 0);
  return status;
}
int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }

int renameat2(int a, const char *one, int b, const char *two, unsigned flags) {
  char from[PATH_MAX], to[PATH_MAX];
  int ours = place(a, one, from) & place(b, two, to);
  if (ours && fails(0, 0)) return -1;
  int status = syscall(SYS_renameat2, a, one, b, two, flags);
  if (ours && !status) record("rename", from, to, 0, NULL, 0);
  return status;
}
int renameat(int a, const char *one, int b, const char *two) { return renameat2(a, one, b, two, 0); }
int rename(const char *one, const char *two) { return renameat2(AT_FDCWD, one, AT_FDCWD, two, 0); }

int linkat(int a, const char *one, int b, const char *two, int flags) {
  char from[PATH_MAX], to[PATH_MAX];
  int ours = place(a, one, from) & place(b, two, to);
  int status = syscall(SYS_linkat, a, one, b, two, flags);
  if (ours && !status) record("link", from, to, 0, NULL, 0);
  return status;
}
int link(const char *one, const char *two) { return linkat(AT_FDCWD, one, AT_FDCWD, two, 0); }

int mkdirat(int fd, const char *name, mode_t mode) {
  char path[PATH_MAX];
  int ours = place(fd, name, path);
  struct stat found;
  int is_new = ours && syscall(SYS_newfstatat, fd, name, &found, 0) < 0;
  if (is_new && fails(1, 0)) return -1;
  int status = syscall(SYS_mkdirat, fd, name, mode);
  if (ours && !status) record("mkdir", path, "", 0, NULL, 0);
  return status;
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int unlinkat(int fd, const char *name, int flags) {
  char path[PATH_MAX];
  int ours = place(fd, name, path);
  int status = syscall(SYS_unlinkat, fd, name, flags);
  if (ours && !status) record("unlink", path, "", 0, NULL, 0);
  return status;
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char *path) {
  int status = unlink(path);
  return status && errno == EISDIR ? rmdir(path) : status;
}

/* Preloaded into the programs of a job: appends a record of their start and end to the file of the node.
 *
 * It must not change what a program does, prints or returns. So it makes its own system calls (they do not
 * touch errno, and neither the program nor another preloaded library sees them), allocates nothing, keeps no
 * file open, and builds each record on the stack: a child of vfork(2), which shares the memory of its parent,
 * and a signal handler may run any of the functions that may be called there. Symbols that not every libc has
 * are weak, because a library with a missing symbol would end the program.
 *
 * joblens.capture.records reads the file and documents its format.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define WEAK __attribute__((weak))
#define ABSENT UINT64_MAX
#define MAGIC 0x31434c4au /* JLC1 */
#define HEADER 12
#define LARGEST 4096 /* one write of this size to a local file is not interleaved with others */
#define SMALL 512
#define LARGEST_FILE (512L << 20) /* a job that starts millions of processes must not fill the disk */
#define LIMIT_MARGIN (64 << 10)
#define INCOMPLETE 0700 /* mode of the file if a record could not be written, as on a full disk */
#define MOST_THREADS 4096
#define MOST_ARGUMENTS 2048
#define LARGEST_EXEC 2048 /* a child of vfork(2) may have a small stack */
#define SLOTS 128
#define COUNTED_THREADS 64 /* at a time: each takes a descriptor per event */
#define EVENTS 6
#define TICKS 100 /* per second, in /proc/PID/stat */
#define LARGE_PEAK 4096 /* KiB; to read another peak takes an eighth of the time of a record */
#define HIGH 500 /* descriptors of the library begin here */

extern char **environ;
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *) WEAK;
extern int on_exit(void (*)(int, void *), void *) WEAK;
extern const char *gnu_get_libc_version(void) WEAK;
extern int pthread_key_create(pthread_key_t *, void (*)(void *)) WEAK;
extern int pthread_setspecific(pthread_key_t, const void *) WEAK;

static int active;
static char file_path[1024];
static pid_t self;
static uint64_t self_ticks; /* start of the process in clock ticks since boot, as in /proc/PID/stat */
static long start_peak; /* of memory in KiB, which the kernel has taken over from before exec(2) */
static int restricted; /* its system calls: ours could end it, and the programs that it executes */
static int held = -1; /* the file, held open by a program that is about to become another user */
static uint64_t threads_created, threads_ended, ended_delay, ended_slices;
static pthread_key_t thread_key;
static int has_thread_key;
static __thread uint64_t thread_start __attribute__((tls_model("initial-exec")));

/* System calls: the result, or -errno. */

#if defined(__x86_64__)
static long call(long n, long a, long b, long c, long d, long e) {
  long result;
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
                   : "rcx", "r11", "memory");
  return result;
}
#elif defined(__aarch64__)
static long call(long n, long a, long b, long c, long d, long e) {
  register long x8 __asm__("x8") = n;
  register long x0 __asm__("x0") = a;
  register long x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c;
  register long x3 __asm__("x3") = d;
  register long x4 __asm__("x4") = e;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
  return x0;
}
#else
#error "capture supports x86-64 and AArch64"
#endif

#define CALL(number, a, b, c, d) call(number, (long)(a), (long)(b), (long)(c), (long)(d), 0)

static uint64_t clock_ns(clockid_t which) {
  struct timespec now = {0, 0};
  CALL(SYS_clock_gettime, which, &now, 0, 0);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* A pointer of which a header says that it is not null: the compiler would leave out checks of it. */
static void *any_pointer(const void *pointer) {
  __asm__("" : "+r"(pointer));
  return (void *)pointer;
}

static pid_t current_pid(void) { return (pid_t)CALL(SYS_getpid, 0, 0, 0, 0); }

/* Text of a file in /proc, with a terminating zero; "" if it cannot be read. */
static void slurp(const char *path, char *buffer, unsigned room) {
  long count = -1, fd = CALL(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
  if (fd >= 0) {
    count = CALL(SYS_read, fd, buffer, room - 1, 0);
    CALL(SYS_close, fd, 0, 0, 0);
  }
  buffer[count > 0 ? count : 0] = 0;
}

/* The decimal numbers in a text, whatever stands between them; ABSENT for those that are missing. */
static const char *parse_numbers(const char *text, uint64_t *numbers, int count) {
  for (int n = 0; n < count; n++) {
    while (*text && (*text < '0' || *text > '9')) text++;
    numbers[n] = *text ? 0 : ABSENT;
    while (*text >= '0' && *text <= '9') numbers[n] = numbers[n] * 10 + (uint64_t)(*text++ - '0');
  }
  return text;
}

/* Fields of /proc/PID/stat after the name, which may contain anything: numbers[0] is the parent. */
static void read_stat(const char *path, uint64_t *numbers, int count) {
  char text[SMALL];
  slurp(path, text, sizeof text);
  char *name_end = strrchr(text, ')');
  parse_numbers(name_end ? name_end : "", numbers, count);
}

static uint64_t read_ticks(void) {
  uint64_t fields[19];
  read_stat("/proc/self/stat", fields, 19);
  return fields[18] == ABSENT ? 0 : fields[18];
}

/* Records */

struct record {
  unsigned char *data;
  unsigned size, room;
};

static void put(struct record *record, const void *bytes, unsigned count) {
  if (record->size + count > record->room) count = record->room - record->size;
  memcpy(record->data + record->size, bytes, count);
  record->size += count;
}

static void put_number(struct record *record, uint64_t number) {
  put(record, &number, sizeof number);
  record->data[11]++;
}

static void put_text(struct record *record, const char *text, unsigned most) {
  unsigned length = 0;
  while (length < most && text[length]) length++;
  put(record, text, length);
  put(record, "", 1);
}

static void begin(struct record *record, unsigned char *buffer, unsigned room, char kind) {
  record->data = buffer;
  record->size = HEADER;
  record->room = room;
  memset(buffer, 0, HEADER);
  buffer[10] = (unsigned char)kind;
}

/* All records begin with these. A child of vfork(2) finds the values of its parent in memory. */
static void begin_process(struct record *record, unsigned char *buffer, unsigned room, char kind) {
  pid_t pid = current_pid();
  begin(record, buffer, room, kind);
  put_number(record, clock_ns(CLOCK_REALTIME));
  put_number(record, (uint64_t)pid);
  put_number(record, pid == self ? self_ticks : read_ticks());
  put_number(record, (uint64_t)CALL(SYS_getppid, 0, 0, 0, 0));
}

/* Of what is recorded, if that was not now. */
static void set_time(struct record *record, uint64_t time) { memcpy(record->data + HEADER, &time, sizeof time); }

static uint32_t adler32(const unsigned char *data, unsigned size) {
  uint32_t a = 1, b = 0;
  for (unsigned n = 0; n < size; n++) { /* 4096 bytes of 255 do not overflow */
    a += data[n];
    b += a;
  }
  return (b % 65521u) << 16 | a % 65521u;
}

/* With O_CREAT, the kernel would lock the folder for each record. */
static int open_file(void) {
  const int flags = O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  int fd = (int)CALL(SYS_openat, AT_FDCWD, file_path, flags, 0);
  return fd == -ENOENT ? (int)CALL(SYS_openat, AT_FDCWD, file_path, flags | O_CREAT, 0600) : fd;
}

/* Whether the program may write there: beyond its limit it would get SIGXFSZ. */
static int has_room(int fd, unsigned size) {
  struct rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};
  long end = CALL(SYS_lseek, fd, 0, SEEK_END, 0);
  CALL(SYS_prlimit64, 0, RLIMIT_FSIZE, 0, &limit);
  if (limit.rlim_cur != RLIM_INFINITY && (uint64_t)end + size + LIMIT_MARGIN > limit.rlim_cur) return 0;
  return end >= 0 && end < LARGEST_FILE;
}

/* The program may have closed it, and another file may have its number now. */
static int is_file(int fd, const char *path) {
  char link[32] = "/proc/self/fd/", target[sizeof file_path];
  int n = 14, digits = 1;
  if (fd < 0) return 0;
  for (int rest = fd; rest >= 10; rest /= 10) digits++;
  for (int rest = fd, at = n + digits - 1; at >= n; at--, rest /= 10) link[at] = (char)('0' + rest % 10);
  long length = CALL(SYS_readlinkat, AT_FDCWD, link, target, sizeof target - 1);
  return length > 0 && !memcmp(target, path, (size_t)length) && !path[length];
}

/* A descriptor beyond those that programs expect to get. */
static int move_high(int fd) {
  long high = CALL(SYS_fcntl, fd, F_DUPFD_CLOEXEC, HIGH, 0);
  CALL(SYS_close, fd, 0, 0, 0);
  return high >= 0 ? (int)high : -1;
}

static void append(struct record *record) {
  uint32_t magic = MAGIC, sum;
  uint16_t size = (uint16_t)record->size;
  memcpy(record->data, &magic, 4);
  memcpy(record->data + 8, &size, 2);
  sum = adler32(record->data + 8, record->size - 8);
  memcpy(record->data + 4, &sum, 4);
  int fd = open_file(), own = fd >= 0;
  if (!own && is_file(held, file_path)) fd = held;
  if (fd < 0) return;
  if (!has_room(fd, record->size) || CALL(SYS_write, fd, record->data, record->size, 0) != (long)record->size)
    CALL(SYS_fchmod, fd, INCOMPLETE, 0, 0);
  if (own) CALL(SYS_close, fd, 0, 0, 0);
}

/* Usage */

static void put_rusage(struct record *record, const struct rusage *usage) {
  put_number(record, (uint64_t)usage->ru_utime.tv_sec * 1000000u + (uint64_t)usage->ru_utime.tv_usec);
  put_number(record, (uint64_t)usage->ru_stime.tv_sec * 1000000u + (uint64_t)usage->ru_stime.tv_usec);
  put_number(record, (uint64_t)usage->ru_maxrss);
  put_number(record, (uint64_t)usage->ru_minflt);
  put_number(record, (uint64_t)usage->ru_majflt);
  put_number(record, (uint64_t)usage->ru_inblock);
  put_number(record, (uint64_t)usage->ru_oublock);
  put_number(record, (uint64_t)usage->ru_nvcsw);
  put_number(record, (uint64_t)usage->ru_nivcsw);
}

static void put_io(struct record *record, const char *path) {
  char text[SMALL];
  uint64_t numbers[7];
  slurp(path, text, sizeof text);
  parse_numbers(text, numbers, 7);
  for (int n = 0; n < 7; n++) put_number(record, numbers[n]);
}

/* Time on a core, time runnable without one, time slices. */
static void read_schedstat(const char *path, uint64_t *numbers) {
  char text[96];
  slurp(path, text, sizeof text);
  parse_numbers(text, numbers, 3);
}

static void add_known(uint64_t *sum, uint64_t value) {
  if (value != ABSENT) __atomic_fetch_add(sum, value, __ATOMIC_RELAXED);
}

/* Threads */

static void begin_thread_record(struct record *record, unsigned char *buffer, uint64_t tid, uint64_t start,
                                int running) {
  begin_process(record, buffer, SMALL, 'T');
  put_number(record, tid);
  put_number(record, start);
  put_number(record, (uint64_t)running);
}

/* Events of perf_event_open(2) that JOBLENS_COUNTERS names, of each thread by itself. Off by default: the
 * descriptors are visible to the program, and other tools may need the counters of the CPU. */

struct counting {
  int used;
  pid_t thread;
  int fds[EVENTS];
  uint64_t ids[EVENTS];
};

static const struct {
  const char *name;
  uint32_t type;
  uint64_t config;
} events[EVENTS] = {
    {"task-clock", PERF_TYPE_SOFTWARE, PERF_COUNT_SW_TASK_CLOCK},
    {"context-switches", PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CONTEXT_SWITCHES},
    {"page-faults", PERF_TYPE_SOFTWARE, PERF_COUNT_SW_PAGE_FAULTS},
    {"instructions", PERF_TYPE_HARDWARE, PERF_COUNT_HW_INSTRUCTIONS},
    {"cycles", PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES},
    {"cache-misses", PERF_TYPE_HARDWARE, PERF_COUNT_HW_CACHE_MISSES},
};
static unsigned chosen_events; /* a bit each */
static struct counting counted[COUNTED_THREADS];
static __thread struct counting *own_counts __attribute__((tls_model("initial-exec")));

static void choose_events(const char *list) {
  while (list && *list) {
    unsigned length = 0;
    while (list[length] && list[length] != ',') length++;
    for (int n = 0; n < EVENTS; n++)
      if (!strncmp(list, events[n].name, length) && !events[n].name[length]) chosen_events |= 1u << n;
    list += length + (list[length] == ',');
  }
}

static int open_event(int n, int only_user) {
  struct perf_event_attr attr;
  memset(&attr, 0, sizeof attr);
  attr.size = PERF_ATTR_SIZE_VER0;
  attr.type = events[n].type;
  attr.config = events[n].config;
  attr.read_format = PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING | PERF_FORMAT_ID;
  attr.exclude_kernel = attr.exclude_hv = only_user ? 1 : 0;
  return (int)call(SYS_perf_event_open, (long)&attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
}

/* Value, time enabled, time running. */
static int read_event(const struct counting *counting, int n, uint64_t *values) {
  uint64_t found[4];
  if (!is_file(counting->fds[n], "anon_inode:[perf_event]")) return 0;
  if (CALL(SYS_read, counting->fds[n], found, sizeof found, 0) != sizeof found) return 0;
  if (found[3] != counting->ids[n]) return 0;
  memcpy(values, found, 3 * sizeof *values);
  return 1;
}

static void begin_counting(void) {
  uint64_t found[4];
  own_counts = 0;
  for (int at = 0; chosen_events && !own_counts && at < COUNTED_THREADS; at++) {
    int unused = 0;
    if (__atomic_compare_exchange_n(&counted[at].used, &unused, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
      own_counts = &counted[at];
  }
  if (!own_counts) return;
  own_counts->thread = (pid_t)CALL(SYS_gettid, 0, 0, 0, 0);
  for (int n = 0; n < EVENTS; n++) {
    own_counts->fds[n] = -1;
    if (!(chosen_events & 1u << n)) continue;
    int fd = open_event(n, 0);
    if (fd == -EACCES || fd == -EPERM) fd = open_event(n, 1);
    if (fd < 0 || (fd = move_high(fd)) < 0) continue;
    own_counts->fds[n] = fd;
    own_counts->ids[n] = CALL(SYS_read, fd, found, sizeof found, 0) == sizeof found ? found[3] : 0;
  }
}

static void note_counts(const struct counting *counting) {
  unsigned char buffer[SMALL];
  struct record record;
  begin_process(&record, buffer, sizeof buffer, 'C');
  put_number(&record, (uint64_t)counting->thread);
  for (int n = 0; n < EVENTS; n++) {
    uint64_t values[3] = {ABSENT, ABSENT, ABSENT};
    if (counting->fds[n] >= 0) read_event(counting, n, values);
    for (int k = 0; k < 3; k++) put_number(&record, values[k]);
  }
  append(&record);
}

static void note_all_counts(void) {
  for (int at = 0; chosen_events && at < COUNTED_THREADS; at++)
    if (__atomic_load_n(&counted[at].used, __ATOMIC_ACQUIRE)) note_counts(&counted[at]);
}

static void stop_counting(struct counting *counting) {
  uint64_t values[3];
  for (int n = 0; n < EVENTS; n++)
    if (counting->fds[n] >= 0 && read_event(counting, n, values)) CALL(SYS_close, counting->fds[n], 0, 0, 0);
  __atomic_store_n(&counting->used, 0, __ATOMIC_RELEASE);
}

/* In the child of fork(2) the descriptors are those of the parent's events. */
static void restart_counting(void) {
  for (int at = 0; chosen_events && at < COUNTED_THREADS; at++)
    if (counted[at].used) stop_counting(&counted[at]);
  begin_counting();
}

static void end_thread(void *value) {
  unsigned char buffer[SMALL];
  char name[17] = "";
  struct record record;
  struct rusage usage;
  uint64_t sched[3];
  (void)value;
  if (!active) return;
  if (own_counts) {
    note_counts(own_counts);
    stop_counting(own_counts);
    own_counts = 0;
  }
  memset(&usage, 0, sizeof usage);
  begin_thread_record(&record, buffer, (uint64_t)CALL(SYS_gettid, 0, 0, 0, 0), thread_start, 0);
  read_schedstat("/proc/thread-self/schedstat", sched);
  CALL(SYS_getrusage, RUSAGE_THREAD, &usage, 0, 0);
  put_number(&record, clock_ns(CLOCK_THREAD_CPUTIME_ID));
  put_rusage(&record, &usage);
  put_io(&record, "/proc/thread-self/io");
  put_number(&record, sched[1]);
  put_number(&record, sched[2]);
  CALL(SYS_prctl, PR_GET_NAME, name, 0, 0);
  put_text(&record, name, 16);
  add_known(&ended_delay, sched[1]);
  add_known(&ended_slices, sched[2]);
  __atomic_fetch_add(&threads_ended, 1, __ATOMIC_RELAXED);
  append(&record);
}

static void task_path(char *path, const char *tid, const char *file) {
  strcpy(path, "/proc/self/task/");
  strcat(path, tid);
  strcat(path, file);
}

/* When it began, from clock ticks since boot; at most a tick too early. */
static uint64_t began_at(uint64_t ticks) {
  return clock_ns(CLOCK_REALTIME) - clock_ns(CLOCK_BOOTTIME) + ticks * (1000000000u / TICKS);
}

/* A thread that runs when the process ends, or that is about to end and has written its own record already. The
 * kernel counts its CPU time by mode in clock ticks only. */
static void note_running_thread(const char *tid, uint64_t *sums) {
  unsigned char buffer[SMALL];
  char path[64], text[32];
  struct record record;
  uint64_t id, stat[19], sched[3];
  parse_numbers(tid, &id, 1);
  task_path(path, tid, "/stat");
  read_stat(path, stat, 19);
  task_path(path, tid, "/schedstat");
  read_schedstat(path, sched);
  if (stat[18] == ABSENT) return; /* it has just ended, and has its own record */
  begin_thread_record(&record, buffer, id, began_at(stat[18]), 1);
  const uint64_t values[] = {sched[0], ABSENT, ABSENT, ABSENT, stat[6], stat[8], ABSENT, ABSENT, ABSENT, ABSENT};
  for (unsigned n = 0; n < sizeof values / sizeof *values; n++) put_number(&record, values[n]);
  task_path(path, tid, "/io");
  put_io(&record, path);
  put_number(&record, sched[1]);
  put_number(&record, sched[2]);
  task_path(path, tid, "/comm");
  slurp(path, text, sizeof text);
  char *line_end = strchr(text, '\n');
  if (line_end) *line_end = 0;
  put_text(&record, text, 16);
  add_known(&sums[0], sched[1]);
  add_known(&sums[1], sched[2]);
  append(&record);
}

struct entry { /* getdents64(2) */
  uint64_t inode;
  int64_t offset;
  uint16_t size;
  uint8_t type;
  char name[];
};

static void note_running_threads(uint64_t *sums) {
  char entries[1024] __attribute__((aligned(8)));
  long fd = CALL(SYS_openat, AT_FDCWD, "/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0), count;
  int threads = 0;
  if (fd < 0) return;
  while ((count = CALL(SYS_getdents64, fd, entries, sizeof entries, 0)) > 0)
    for (long at = 0; at < count; at += ((struct entry *)(entries + at))->size) {
      const char *name = ((struct entry *)(entries + at))->name;
      if (*name != '.' && threads++ < MOST_THREADS) note_running_thread(name, sums);
    }
  CALL(SYS_close, fd, 0, 0, 0);
}

/* Starts and ends of processes */

/* The peak of the memory that this program has had itself. The text is long, and a signal handler that ends the
 * process may have a small stack. */
static long read_peak(long otherwise) {
  static char text[4096];
  uint64_t peak = ABSENT;
  slurp("/proc/self/status", text, sizeof text);
  const char *line = strstr(text, "VmHWM:");
  if (line) parse_numbers(line, &peak, 1);
  return peak == ABSENT ? otherwise : (long)peak;
}

static void note_end(char kind, uint64_t status) {
  unsigned char buffer[SMALL];
  struct record record;
  struct rusage usage, children;
  uint64_t sched[3], sums[2] = {0, 0};
  int shared = current_pid() != self; /* a child of vfork(2) or of a system call */
  memset(&usage, 0, sizeof usage);
  memset(&children, 0, sizeof children);
  if (!shared) note_all_counts();
  if (threads_created && !shared)
    note_running_threads(sums);
  else {
    read_schedstat("/proc/self/schedstat", sched);
    add_known(&sums[0], sched[1]);
    add_known(&sums[1], sched[2]);
  }
  begin_process(&record, buffer, sizeof buffer, kind);
  put_number(&record, status);
  put_number(&record, clock_ns(CLOCK_PROCESS_CPUTIME_ID));
  CALL(SYS_getrusage, RUSAGE_SELF, &usage, 0, 0);
  CALL(SYS_getrusage, RUSAGE_CHILDREN, &children, 0, 0);
  if (!shared && usage.ru_maxrss <= start_peak && start_peak > LARGE_PEAK) usage.ru_maxrss = read_peak(usage.ru_maxrss);
  put_rusage(&record, &usage);
  put_io(&record, "/proc/self/io");
  put_number(&record, sums[0] + (shared ? 0 : ended_delay));
  put_number(&record, sums[1] + (shared ? 0 : ended_slices));
  put_number(&record, shared ? 0 : threads_created);
  put_number(&record, (uint64_t)children.ru_utime.tv_sec * 1000000u + (uint64_t)children.ru_utime.tv_usec);
  put_number(&record, (uint64_t)children.ru_stime.tv_sec * 1000000u + (uint64_t)children.ru_stime.tv_usec);
  append(&record);
}

static void put_group(struct record *record) {
  put_number(record, (uint64_t)CALL(SYS_getpgid, 0, 0, 0, 0));
  put_number(record, (uint64_t)CALL(SYS_getsid, 0, 0, 0, 0));
  put_number(record, (uint64_t)CALL(SYS_getuid, 0, 0, 0, 0));
}

static void note_fork(void) {
  unsigned char buffer[SMALL];
  struct record record;
  if (!active) return;
  self = current_pid();
  self_ticks = read_ticks();
  threads_created = threads_ended = ended_delay = ended_slices = 0;
  start_peak = 0;
  begin_process(&record, buffer, sizeof buffer, 'F');
  put_group(&record);
  append(&record);
  restart_counting();
}

/* Arguments, without what looks like a password, token or key. */

static const char *const secret_words[] = {
    "password",   "passwords",  "passwd",      "passphrase",  "pass",       "pwd",         "secret",
    "secrets",    "token",      "apikey",      "api_key",     "api-key",    "accesskey",   "access_key",
    "access-key", "privatekey", "private_key", "private-key", "credential", "credentials", "authorization",
    "bearer",
};

static char lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c; }

static int is_letter(char c) { return lower(c) >= 'a' && lower(c) <= 'z'; }

static int is_name(char c) {
  return is_letter(c) || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
}

static int is_blank(char c) { return c == ' ' || c == '\t' || c == '\n'; }

static int is_quote(char c) { return c == '"' || c == '\''; }

static int is_one_of(char c, const char *characters) { return c && strchr(characters, c); }

/* Whether the text begins with a word in lower case, however the text is written. */
static int has_word(const char *text, const char *word) {
  while (*word && lower(*text) == *word) text++, word++;
  return !*word;
}

static unsigned name_end(const char *text, unsigned at) {
  while (is_name(text[at])) at++;
  return at;
}

static unsigned skip_blanks(const char *text, unsigned at) {
  while (is_blank(text[at])) at++;
  return at;
}

/* Whether the word is in the name that begins at `first`. Tokens, tokenizer, bypass and PWD are no secrets. */
static int is_word(const char *text, unsigned first, unsigned at, const char *word) {
  char before = at > first ? text[at - 1] : 0;
  if (!has_word(text + at, word) || is_letter(text[at + strlen(word)])) return 0;
  if (!strcmp(word, "pass")) return !is_letter(before);
  return strcmp(word, "pwd") || is_one_of(before, "-_");
}

static int is_secret_name(const char *text, unsigned first, unsigned last) {
  const unsigned count = sizeof secret_words / sizeof *secret_words;
  for (unsigned at = first; at < last; at++)
    for (unsigned n = 0; n < count && is_one_of(lower(text[at]), "abcpst"); n++)
      if (is_word(text, first, at, secret_words[n])) return 1;
  return 0;
}

static int is_authorization(const char *text, unsigned first, unsigned last) {
  for (unsigned at = first; at < last; at++)
    if (is_word(text, first, at, "authorization")) return 1;
  return 0;
}

static int is_bearer(const char *text, unsigned first, unsigned last) {
  return last - first >= 6 && has_word(text + last - 6, "bearer");
}

/* Whether this is the next option, and not the value of the one before. */
static int is_option(const char *text) {
  if (*text != '-') return 0;
  if (!text[1] || is_blank(text[1]) || is_quote(text[1]) || text[1] == '-') return 1;
  return !text[2] || is_blank(text[2]) || is_quote(text[2]);
}

/* Where the scheme of an Authorization header ends. */
static unsigned scheme_end(const char *text, unsigned at) {
  if (has_word(text + at, "bearer") && is_blank(text[at + 6])) return skip_blanks(text, at + 6);
  if (has_word(text + at, "basic") && is_blank(text[at + 5])) return skip_blanks(text, at + 5);
  return at;
}

static unsigned quoted_end(const char *text, unsigned at, char quote) {
  while (text[at] && text[at] != quote) at += 1 + (text[at] == '\\' && text[at + 1]);
  return at;
}

static unsigned plain_end(const char *text, unsigned at) {
  while (text[at] && !is_blank(text[at]) && !is_quote(text[at]) && !is_one_of(text[at], "&;,")) at++;
  return at;
}

struct value {
  unsigned first, last;
};

/* The value after the secret's name from `first` to `last`; an empty one if none follows. If nothing precedes the
 * name (`leading`), the value is the rest of the argument. joblens.core.secrets does the same. */
static struct value find_value(const char *text, unsigned first, unsigned last, int leading) {
  const struct value none = {0, 0};
  unsigned at = last, given;
  char before = first && is_quote(text[first - 1]) ? text[first - 1] : 0, closing = 0;
  if (is_quote(text[at + (text[at] == '\\')])) at += 1 + (text[at] == '\\');
  int is_quoted = at > last;
  given = is_one_of(text[at], "=:");
  int listed = is_quoted && text[first] == '-' && text[at] == ','; /* '--password', 'VALUE' */
  if (!given && !listed && !is_blank(text[at])) return none;
  if (!given && text[first] != '-' && !is_bearer(text, first, last)) return none;
  at = skip_blanks(text, at + (given || listed));
  int is_whole = given && leading && !is_quoted;
  if (!is_whole && is_quote(text[at + (text[at] == '\\')])) {
    at += text[at] == '\\';
    closing = text[at++];
  } else if (!is_whole && given && before && !is_quoted)
    closing = before;
  else if (!is_whole && given && is_authorization(text, first, last))
    is_whole = 1;
  if (given)
    at = scheme_end(text, at);
  else if (!closing && (listed || is_option(text + at)))
    return none;
  if (is_whole) return (struct value){at, (unsigned)strlen(text)};
  return (struct value){at, closing ? quoted_end(text, at, closing) : plain_end(text, at)};
}

static int is_name_start(const char *text, unsigned at) {
  return is_name(text[at]) && (!at || !is_name(text[at - 1]));
}

/* The password in `://USER:PASSWORD@` at the text: up to the last @ before a blank or another secret; or an empty
 * one. `*searched` is up to where it is known that there is none. */
static struct value find_password(const char *text, unsigned at, unsigned *searched) {
  struct value found = {0, 0};
  if (at < *searched || strncmp(text + at, "://", 3)) return found;
  for (at += 3; text[at] && text[at] != ':'; at++)
    if (is_blank(text[at]) || is_quote(text[at]) || is_one_of(text[at], "/@")) return found;
  if (!text[at]) return found;
  found.first = found.last = ++at;
  while (text[at] && !is_blank(text[at])) {
    if (text[at] == '@') found.last = at;
    unsigned last = is_name_start(text, at) ? name_end(text, at) : at + 1;
    struct value other = is_secret_name(text, at, last) ? find_value(text, at, last, 0) : (struct value){0, 0};
    if (other.last > other.first) break;
    at = last;
  }
  if (found.last == found.first) *searched = at;
  return found;
}

/* Whether the next argument is a secret: `--password VALUE`. */
static int put_masked(struct record *record, const char *text) {
  int leading = 1, is_next = 0;
  unsigned at = 0, searched = 0;
  while (text[at] && record->size < record->room) {
    unsigned last = at + 1;
    struct value hidden = find_password(text, at, &searched);
    if (is_name_start(text, at)) {
      last = name_end(text, at);
      if (is_secret_name(text, at, last)) {
        hidden = find_value(text, at, last, leading);
        if (!text[last] && text[at] == '-') is_next = 1;
      }
    } else if (text[at] != '=')
      leading = 0;
    if (hidden.last > hidden.first) last = hidden.first;
    put(record, text + at, last - at);
    at = last;
    if (hidden.last <= hidden.first) continue;
    put(record, "***", 3);
    at = hidden.last;
    leading = 0;
  }
  return is_next;
}

/* Arguments that the user wants to have masked, too: names of options, and patterns with `*`. */

#define MASKS 1024
#define NO_MASK UINT32_MAX

static char masks[MASKS]; /* separated by blanks; a copy, because some programs write over their environment */

static void choose_masks(const char *given) {
  if (given) strcpy(masks, strlen(given) < sizeof masks ? given : "*"); /* too many: everything is masked */
}

static unsigned word_end(const char *text, unsigned at) {
  while (text[at] && !is_blank(text[at])) at++;
  return at;
}

/* Whether a word is like a pattern. After a `*` that fails, the last one takes one character more. */
static int is_like(const char *word, unsigned size, const char *pattern, unsigned length) {
  unsigned at = 0, in = 0, star = NO_MASK, taken = 0;
  while (at < size) {
    if (in < length && pattern[in] == '*') {
      star = in++;
      taken = at;
    } else if (in < length && lower(pattern[in]) == lower(word[at])) {
      in++;
      at++;
    } else if (star != NO_MASK) {
      in = star + 1;
      at = ++taken;
    } else
      return 0;
  }
  while (in < length && pattern[in] == '*') in++;
  return in == length;
}

/* Where the word at `first` is to be masked from, by one pattern; or NO_MASK. */
static unsigned masked_from(const char *text, unsigned first, const char *pattern, unsigned length, int *is_next) {
  unsigned last = word_end(text, first), kept = 0;
  while (kept < length && pattern[kept] != '*') kept++;
  if (kept < length) return is_like(text + first, last - first, pattern, length) ? first + kept : NO_MASK;
  while (length && pattern[length - 1] == '=') length--; /* `--license=` is `--license` */
  if (last - first < length || !is_like(text + first, length, pattern, length)) return NO_MASK;
  if (text[first + length] == '=') return first + length + 1;
  if (first + length != last) return NO_MASK;
  if (!first && !text[last]) *is_next = 1;
  unsigned following = skip_blanks(text, last);
  return text[following] && !is_option(text + following) ? following : NO_MASK;
}

/* From where on an argument is masked, or NO_MASK. joblens.core.secrets does the same. */
static unsigned find_mask(const char *text, int *is_next) {
  for (unsigned first = skip_blanks(text, 0); text[first]; first = skip_blanks(text, word_end(text, first)))
    for (unsigned at = skip_blanks(masks, 0); masks[at]; at = skip_blanks(masks, word_end(masks, at))) {
      unsigned from = masked_from(text, first, masks + at, word_end(masks, at) - at, is_next);
      if (from != NO_MASK) return from;
    }
  return NO_MASK;
}

static void put_until(struct record *record, const char *text, unsigned last) {
  if (last > MOST_ARGUMENTS) last = MOST_ARGUMENTS;
  char part[last + 1];
  memcpy(part, text, last);
  part[last] = 0;
  put_masked(record, part);
  put(record, "***", 3);
}

static int put_argument(struct record *record, const char *text, unsigned most) {
  unsigned room = record->room, left = room - record->size;
  record->room = record->size + (most < left ? most : left - 1); /* a zero byte follows */
  int is_next = 0;
  unsigned from = *masks ? find_mask(text, &is_next) : NO_MASK;
  if (from == NO_MASK)
    is_next |= put_masked(record, text);
  else {
    put_until(record, text, from);
    is_next = 0;
  }
  record->room = room;
  put(record, "", 1);
  return is_next;
}

static void put_arguments(struct record *record, char *const *arguments) {
  int is_secret = 0;
  unsigned first = record->size;
  for (; any_pointer(arguments) && *arguments; arguments++) {
    if (record->size - first >= MOST_ARGUMENTS || record->size == record->room) return;
    if (is_secret && !is_option(*arguments)) {
      put_text(record, "***", 3);
      is_secret = 0;
    } else
      is_secret = put_argument(record, *arguments, MOST_ARGUMENTS - (record->size - first));
  }
}

/* What the environment of a program says of it. */

static const char *const variables[] = {"JOBLENS_CAPTURE=", "JOBLENS_PROCESS_TAGS=", "PAPIEX_TAGS=",
                                        "SLURM_PROCID=",    "OMPI_COMM_WORLD_RANK=", "PMI_RANK=",
                                        "PMIX_RANK=",       "FLUX_TASK_RANK=",       "SLURM_STEP_ID=",
                                        "JOBLENS_COUNTERS=", "JOBLENS_MASK="};
enum { CAPTURE, TAGS, PAPIEX, PROCID, OMPI, PMI, PMIX, FLUX, STEP, COUNTERS, MASK, VARIABLES };

static struct {
  char tags[401], rank[21], step[41];
} labels; /* of this program: the environment of another may be empty */

static void find_variables(char *const *environment, const char **values) {
  for (; environment && *environment; environment++) {
    char first = **environment;
    if (first != 'J' && first != 'P' && first != 'S' && first != 'O' && first != 'F') continue;
    for (int n = 0; n < VARIABLES; n++) {
      size_t length = strlen(variables[n]);
      if (!values[n] && !strncmp(*environment, variables[n], length)) values[n] = *environment + length;
    }
  }
}

static const char *first_known(const char **values, int from, int to) {
  for (int n = from; n <= to; n++)
    if (values[n]) return values[n];
  return "";
}

static void copy_text(char *target, const char *text, unsigned room) {
  unsigned length = 0;
  for (; length < room - 1 && text[length]; length++) target[length] = text[length];
  target[length] = 0;
}

static void choose_labels(const char **values) {
  copy_text(labels.tags, first_known(values, TAGS, PAPIEX), sizeof labels.tags);
  copy_text(labels.rank, first_known(values, PROCID, FLUX), sizeof labels.rank);
  copy_text(labels.step, first_known(values, STEP, STEP), sizeof labels.step);
}

/* Tags, rank and step of another program: by its environment if that is complete, else those of this one. */
static void put_labels(struct record *record, char *const *environment) {
  const char *values[VARIABLES] = {0};
  find_variables(environment, values);
  put_text(record, values[CAPTURE] ? first_known(values, TAGS, PAPIEX) : labels.tags, sizeof labels.tags - 1);
  put_text(record, values[CAPTURE] ? first_known(values, PROCID, FLUX) : labels.rank, sizeof labels.rank - 1);
  put_text(record, values[CAPTURE] ? first_known(values, STEP, STEP) : labels.step, sizeof labels.step - 1);
}

static void put_cwd(struct record *record) {
  char target[SMALL];
  if (CALL(SYS_getcwd, target, sizeof target, 0, 0) <= 0) *target = 0;
  put_text(record, target, sizeof target);
}

/* The kernel's peak of memory of a program begins with what the process has had before. */
static void put_peak(struct record *record) {
  struct rusage usage;
  memset(&usage, 0, sizeof usage);
  CALL(SYS_getrusage, RUSAGE_SELF, &usage, 0, 0);
  put_number(record, (uint64_t)usage.ru_maxrss);
}

/* The program that a process becomes: if it does not load the library, nothing else names it. */
static int note_exec(const char *path, char *const *arguments, char *const *environment) {
  unsigned char buffer[LARGEST_EXEC];
  struct record record;
  if (!active || !any_pointer(path)) return 0;
  if (strchr(path, '/') && CALL(SYS_faccessat, AT_FDCWD, path, X_OK, 0)) return 0; /* one of those in PATH */
  begin_process(&record, buffer, sizeof buffer, 'X');
  put_peak(&record);
  put_text(&record, path, 255);
  put_cwd(&record);
  put_labels(&record, environment);
  put_arguments(&record, arguments);
  append(&record);
  if (current_pid() == self) note_all_counts();
  return 1;
}

static void note_failed_exec(int noted) {
  unsigned char buffer[SMALL];
  struct record record;
  if (!noted) return;
  begin_process(&record, buffer, sizeof buffer, 'Y');
  append(&record);
}

static void note_spawn(uint64_t before, pid_t child, const char *path, char *const *arguments,
                       char *const *environment) {
  unsigned char buffer[LARGEST];
  struct record record;
  begin_process(&record, buffer, sizeof buffer, 'P');
  put_number(&record, (uint64_t)child);
  put_number(&record, before);
  put_peak(&record);
  put_text(&record, path, 255);
  put_text(&record, "", 0); /* it may change its folder first */
  put_labels(&record, environment);
  put_arguments(&record, arguments);
  append(&record);
}

static uint64_t microseconds(const struct timeval *time) {
  return (uint64_t)time->tv_sec * 1000000u + (uint64_t)time->tv_usec;
}

/* A child that has ended. */
struct reaped {
  struct rusage usage; /* of itself, and of the children that it has waited for */
  enum { UNMEASURED, ALONE, WITH_CHILDREN } how;
  uint64_t ran, ticked, ticked_user; /* microseconds of itself: in all, and as counted at clock ticks */
};

/* A clock of another process, see clock_getcpuclockid(3); also of one that has ended, until it is waited for. */
static uint64_t cpu_clock(pid_t pid, int which) {
  struct timespec now = {0, 0};
  long clock = (int)(~(unsigned)pid << 3 | (unsigned)which);
  if (CALL(SYS_clock_gettime, clock, &now, 0, 0)) return ABSENT;
  return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

/* Of a child that has ended and that nobody has waited for yet. What the kernel reports includes its children; its
 * clocks do not, and are read last: it may still run until it is off its core. */
static void measure(pid_t child, struct reaped *found) {
  enum { TICKED, TICKED_USER, RAN };
  siginfo_t info;
  memset(&info, 0, sizeof info);
  const int options = WEXITED | WNOHANG | WNOWAIT;
  if (call(SYS_waitid, P_PID, child, (long)&info, options, (long)&found->usage) || info.si_pid != child) return;
  uint64_t whole = microseconds(&found->usage.ru_utime) + microseconds(&found->usage.ru_stime);
  found->ran = cpu_clock(child, RAN);
  found->how = found->ran == ABSENT ? UNMEASURED : whole <= found->ran ? ALONE : WITH_CHILDREN;
  if (found->how == WITH_CHILDREN) {
    found->ticked = cpu_clock(child, TICKED);
    found->ticked_user = cpu_clock(child, TICKED_USER);
  }
}

/* User and system time of a process alone: the kernel divides what it ran as its clock ticks were divided. */
static void put_own(struct record *record, const struct reaped *found) {
  uint64_t user = microseconds(&found->usage.ru_utime), system = microseconds(&found->usage.ru_stime);
  if (found->how == WITH_CHILDREN) {
    uint64_t ran = found->ran, ticks = found->ticked, of_user = found->ticked_user, own = ran;
    if (of_user < ticks) own = (uint64_t)((double)ran * (double)of_user / (double)ticks);
    if (own > user) own = user;
    if (ran - own > system) own = ran - system;
    user = own;
    system = ran - own;
  }
  put_number(record, found->how ? user : ABSENT);
  put_number(record, found->how ? system : ABSENT);
}

static void note_wait(pid_t child, int status, const struct reaped *found) {
  unsigned char buffer[SMALL];
  struct record record;
  if (!active || !(WIFEXITED(status) || WIFSIGNALED(status))) return;
  begin_process(&record, buffer, sizeof buffer, 'W');
  put_number(&record, (uint64_t)child);
  put_number(&record, (uint64_t)(unsigned)status);
  if (found) {
    put_rusage(&record, &found->usage);
    put_own(&record, found);
  }
  append(&record);
}

/* The functions of libc that are wrapped. */

/* Resolved at the start, because these may be called where dlsym(3) may not. */
static pid_t (*real_wait4)(pid_t, int *, int, struct rusage *);
static int (*real_waitid)(idtype_t, id_t, siginfo_t *, int);
static int (*real_execvpe)(const char *, char *const *, char *const *);
static int (*real_fexecve)(int, char *const *, char *const *);

static void *resolve(void **pointer, const char *name) {
  void *found = __atomic_load_n(pointer, __ATOMIC_ACQUIRE);
  if (!found) {
    int saved = errno;
    found = dlsym(RTLD_NEXT, name);
    errno = saved;
    __atomic_store_n(pointer, found, __ATOMIC_RELEASE);
  }
  return found;
}

#define RESOLVE(pointer, name) ((__typeof__(pointer))resolve((void **)&pointer, name))

/* A call that waits for a child asks first which one, to measure it. A handler of SIGCHLD runs after that; without the
 * library, it would run when that child has been waited for. So the first call in the handler does that for the
 * interrupted one. What a handler that does not return leaves here is done by the next call. */
enum { FAILED = -1, NOT_YET, DONE, LOST };

static __thread struct waiting {
  siginfo_t found; /* by the kernel */
  int options;
  int state;
  struct reaped reaped;
} waiting __attribute__((tls_model("initial-exec")));

static void finish_waiting(void) {
  struct reaped reaped;
  siginfo_t info;
  if (!waiting.found.si_pid || waiting.state) return;
  memset(&reaped, 0, sizeof reaped);
  memset(&info, 0, sizeof info);
  measure(waiting.found.si_pid, &reaped);
  const int options = waiting.options | WNOHANG;
  if (!call(SYS_waitid, P_PID, waiting.found.si_pid, (long)&info, options, (long)&reaped.usage) && info.si_pid) {
    waiting.found = info;
    waiting.reaped = reaped;
    waiting.state = DONE;
  } else if (!waiting.state) /* a handler may have done it just now */
    waiting.state = LOST;
}

/* Wait for a child as waitid(2) does, and measure it if it has ended. Return LOST if another thread has waited for it,
 * or if the caller is a debugger, which waits for threads, and often. */
static int ask_for(idtype_t type, id_t id, int options, struct waiting *done) {
  finish_waiting();
  memset(done, 0, sizeof *done);
  if (!active || options & ~(WNOHANG | WEXITED | WSTOPPED | WCONTINUED)) return LOST;
  struct waiting interrupted = waiting;
  memset(&waiting, 0, sizeof waiting);
  waiting.options = options;
  int failed = RESOLVE(real_waitid, "waitid")(type, id, &waiting.found, options | WNOWAIT);
  finish_waiting();
  *done = waiting;
  waiting = interrupted;
  return failed ? FAILED : done->state;
}

/* The status of waitpid(2). */
static int status_of(const siginfo_t *info) {
  switch (info->si_code) {
  case CLD_EXITED: return (info->si_status & 0xff) << 8;
  case CLD_KILLED: return info->si_status;
  case CLD_DUMPED: return info->si_status | 0x80;
  case CLD_CONTINUED: return 0xffff;
  default: return info->si_status << 8 | 0x7f;
  }
}

/* The same as the pid of waitpid(2), which is not the smallest number. */
static idtype_t chosen_by(pid_t pid, id_t *id) {
  *id = pid < -1 ? 0u - (id_t)pid : (id_t)(pid > 0 ? pid : CALL(SYS_getpgid, 0, 0, 0, 0));
  return pid > 0 ? P_PID : pid == -1 ? P_ALL : P_PGID;
}

static pid_t wait_for(pid_t pid, int *status, int options, struct rusage *usage) {
  struct waiting done;
  id_t id;
  idtype_t type = chosen_by(pid, &id);
  /* What waitpid(2) does not know, it refuses itself. */
  int asked = ask_for(type, id, pid == INT32_MIN || options & WEXITED ? WNOWAIT : options | WEXITED, &done);
  if (asked < DONE) return asked;
  int found = status_of(&done.found);
  pid_t child = done.found.si_pid;
  if (asked == LOST) child = RESOLVE(real_wait4, "wait4")(pid, &found, options, &done.reaped.usage);
  if (child > 0) {
    if (status) *status = found;
    if (usage) *usage = done.reaped.usage;
    note_wait(child, found, &done.reaped);
  }
  return child;
}

EXPORT pid_t wait(int *status) { return wait_for(-1, status, 0, 0); }
EXPORT pid_t waitpid(pid_t pid, int *status, int options) { return wait_for(pid, status, options, 0); }
EXPORT pid_t wait3(int *status, int options, struct rusage *usage) { return wait_for(-1, status, options, usage); }
EXPORT pid_t wait4(pid_t pid, int *status, int options, struct rusage *usage) {
  return wait_for(pid, status, options, usage);
}

EXPORT int waitid(idtype_t type, id_t id, siginfo_t *info, int options) {
  struct waiting done;
  int asked = ask_for(type, id, info ? options : WNOWAIT, &done), result = 0;
  if (asked == FAILED) return -1;
  if (asked == LOST)
    result = RESOLVE(real_waitid, "waitid")(type, id, info, options);
  else
    *info = done.found;
  if (!result && info && info->si_pid && !(options & WNOWAIT))
    note_wait(info->si_pid, status_of(info), asked == DONE ? &done.reaped : 0);
  return result;
}

static int fail(long result) {
  errno = (int)-result;
  return -1;
}

static const char not_captured[] = "JOBLENS_CAPTURE=", preloaded[] = "LD_PRELOAD=";
static const char own_name[] = "libjoblens-capture.so";

static int names_folder(const char *variable) { return !strncmp(variable, not_captured, sizeof not_captured - 1); }

static int names_library(const char *variable) { return !strncmp(variable, preloaded, sizeof preloaded - 1); }

/* In their containers the library does not exist: the dynamic linker would print a message for each program. */
static const char *const container_programs[] = {"apptainer", "singularity", "podman", "docker", "nerdctl", "enroot",
                                                 "ch-run",    "shifter",     "sarus",  "chroot", "bwrap",   "proot"};
#if defined(__x86_64__)
static const char small_linker[] = "/lib/ld-linux.so.2";
#else
static const char small_linker[] = "/lib/ld-linux-armhf.so.3";
#endif

/* Whether it is a program of 32 bits, where such programs can be run. */
static int is_small(const char *path) {
  unsigned char head[5] = {0};
  if (!strchr(path, '/') || CALL(SYS_faccessat, AT_FDCWD, small_linker, F_OK, 0)) return 0;
  long fd = CALL(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0);
  if (fd < 0) return 0;
  CALL(SYS_read, fd, head, sizeof head, 0);
  CALL(SYS_close, fd, 0, 0, 0);
  return !memcmp(head, "\177ELF\1", 5);
}

static int cannot_load(const char *path) {
  if (!active || !any_pointer(path)) return 0;
  const char *name = strrchr(path, '/');
  name = name ? name + 1 : path;
  for (unsigned n = 0; n < sizeof container_programs / sizeof *container_programs; n++)
    if (!strcmp(name, container_programs[n])) return 1;
  return is_small(path);
}

/* The variable without the library, in a buffer that is as large. */
static char *without_library(char *target, const char *variable) {
  const char *at = variable + sizeof preloaded - 1;
  char *end = target + sizeof preloaded - 1;
  memcpy(target, preloaded, sizeof preloaded);
  while (*at) {
    unsigned length = 0, own = sizeof own_name - 1;
    while (at[length] && at[length] != ':' && at[length] != ' ') length++;
    if (length && !(length > own && at[length - own - 1] == '/' && !memcmp(at + length - own, own_name, own))) {
      if (end > target + sizeof preloaded - 1) *end++ = ':';
      memcpy(end, at, length);
      end += length;
    }
    at += length + (at[length] != 0);
  }
  *end = 0;
  return target;
}

/* The environment for the programs that a restricted program executes, and for those that cannot load the library; it
 * may be a copy of environ. */
#define RELEASE(path, environment)                                                             \
  int unloadable = cannot_load(path);                                                          \
  unsigned size = 0, longest = 1;                                                              \
  for (; (restricted || unloadable) && environment && environment[size]; size++)               \
    if (names_library(environment[size])) longest += (unsigned)strlen(environment[size]);      \
  char *released[size + 1], list[longest];                                                     \
  for (unsigned n = 0; n < size; n++) {                                                        \
    released[n] = restricted && names_folder(environment[n]) ? (char *)not_captured : environment[n]; \
    if (unloadable && names_library(environment[n])) released[n] = without_library(list, environment[n]); \
  }                                                                                            \
  released[size] = 0;                                                                          \
  if (size) environment = released

EXPORT int execve(const char *path, char *const *arguments, char *const *environment) {
  RELEASE(path, environment);
  int noted = note_exec(path, arguments, environment);
  long result = CALL(SYS_execve, path, arguments, environment, 0);
  note_failed_exec(noted);
  return fail(result);
}

EXPORT int execv(const char *path, char *const *arguments) { return execve(path, arguments, environ); }

EXPORT int execvpe(const char *file, char *const *arguments, char *const *environment) {
  RELEASE(file, environment);
  int noted = note_exec(file, arguments, environment), result = RESOLVE(real_execvpe, "execvpe")(file, arguments, environment);
  note_failed_exec(noted);
  return result;
}

EXPORT int execvp(const char *file, char *const *arguments) { return execvpe(file, arguments, environ); }

EXPORT int fexecve(int fd, char *const *arguments, char *const *environment) {
  RELEASE(0, environment);
  char *const *given = any_pointer(arguments);
  int noted = note_exec(given ? given[0] : 0, given, environment);
  int result = RESOLVE(real_fexecve, "fexecve")(fd, arguments, environment);
  note_failed_exec(noted);
  return result;
}

static unsigned count_arguments(const char *first, va_list list) {
  unsigned count = 1;
  va_list copy;
  if (!any_pointer(first)) return 0;
  va_copy(copy, list);
  while (va_arg(copy, char *)) count++;
  va_end(copy);
  return count;
}

/* The arguments of execl(3), and where they end. */
#define TAKE_ARGUMENTS(first)                                                          \
  va_list list;                                                                        \
  va_start(list, first);                                                               \
  unsigned count = count_arguments(first, list);                                       \
  char *arguments[count + 1];                                                          \
  arguments[0] = (char *)first;                                                        \
  for (unsigned n = 1; n <= count; n++) arguments[n] = va_arg(list, char *)

EXPORT int execl(const char *path, const char *first, ...) {
  TAKE_ARGUMENTS(first);
  va_end(list);
  return execve(path, arguments, environ);
}

EXPORT int execlp(const char *file, const char *first, ...) {
  TAKE_ARGUMENTS(first);
  va_end(list);
  return execvpe(file, arguments, environ);
}

EXPORT int execle(const char *path, const char *first, ...) {
  TAKE_ARGUMENTS(first);
  char *const *environment = va_arg(list, char *const *);
  va_end(list);
  return execve(path, arguments, environment);
}

typedef int spawn_function(pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *,
                           char *const *, char *const *);

static int spawn_with(spawn_function *real, pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                      const posix_spawnattr_t *attributes, char *const *arguments, char *const *environment) {
  pid_t child = 0;
  RELEASE(path, environment);
  uint64_t before = active ? clock_ns(CLOCK_REALTIME) : 0;
  int result = real(&child, path, actions, attributes, arguments, environment);
  if (!result && pid) *pid = child;
  if (!result && active) note_spawn(before, child, path, arguments, environment);
  return result;
}

EXPORT int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                       const posix_spawnattr_t *attributes, char *const *arguments, char *const *environment) {
  static spawn_function *real;
  return spawn_with(RESOLVE(real, "posix_spawn"), pid, path, actions, attributes, arguments, environment);
}

EXPORT int posix_spawnp(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                        const posix_spawnattr_t *attributes, char *const *arguments, char *const *environment) {
  static spawn_function *real;
  return spawn_with(RESOLVE(real, "posix_spawnp"), pid, path, actions, attributes, arguments, environment);
}

static uint64_t wait_status(int code) { return (uint64_t)(code & 0xff) << 8; }

EXPORT void _exit(int code) {
  if (active) note_end('E', wait_status(code));
  for (;;) CALL(SYS_exit_group, code, 0, 0, 0);
}

EXPORT void _Exit(int code) { _exit(code); }

EXPORT void quick_exit(int code) {
  static void (*real)(int) __attribute__((noreturn));
  if (active) note_end('E', wait_status(code));
  RESOLVE(real, "quick_exit")(code);
  __builtin_unreachable();
}

EXPORT void abort(void) {
  static void (*real)(void) __attribute__((noreturn));
  if (active) note_end('E', 6);
  RESOLVE(real, "abort")();
  __builtin_unreachable();
}

/* For system(3) and the like, which pass environ on without a wrapped function. */
static void release_environ(void) {
  for (char **variable = environ; variable && *variable; variable++)
    if (names_folder(*variable)) (*variable)[sizeof not_captured - 1] = 0;
}

/* A program that restricts its own system calls could be killed for ours: its record ends here, and the programs
 * that it executes, which inherit a filter, are not captured. */
EXPORT int prctl(int option, ...) {
  static int (*real)(int, unsigned long, unsigned long, unsigned long, unsigned long);
  unsigned long a[4];
  va_list list;
  va_start(list, option);
  for (int n = 0; n < 4; n++) a[n] = va_arg(list, unsigned long);
  va_end(list);
  int restricts = active && current_pid() == self && (option == PR_SET_SECCOMP || option == PR_SET_NO_NEW_PRIVS);
  if (restricts) note_end('L', ABSENT);
  int result = RESOLVE(real, "prctl")(option, a[0], a[1], a[2], a[3]);
  if (restricts && result != -1) {
    active = 0;
    restricted = 1;
    release_environ();
  }
  return result;
}

/* As another user, the program cannot open the file any more. */
static void hold(void) {
  if (!active || held >= 0 || current_pid() != self || CALL(SYS_geteuid, 0, 0, 0, 0)) return;
  int fd = open_file();
  if (fd < 0) return;
  held = move_high(fd);
}

EXPORT int setuid(uid_t user) {
  static int (*real)(uid_t);
  hold();
  return RESOLVE(real, "setuid")(user);
}

EXPORT int seteuid(uid_t user) {
  static int (*real)(uid_t);
  hold();
  return RESOLVE(real, "seteuid")(user);
}

EXPORT int setreuid(uid_t user, uid_t effective) {
  static int (*real)(uid_t, uid_t);
  hold();
  return RESOLVE(real, "setreuid")(user, effective);
}

EXPORT int setresuid(uid_t user, uid_t effective, uid_t saved) {
  static int (*real)(uid_t, uid_t, uid_t);
  hold();
  return RESOLVE(real, "setresuid")(user, effective, saved);
}

struct slot {
  void *(*function)(void *);
  void *argument;
  int used;
};

static struct slot slots[SLOTS]; /* malloc(3) here and free(3) there would give the thread an arena */

static struct slot *take_slot(void) {
  for (int n = 0; n < SLOTS; n++) {
    int unused = 0;
    if (__atomic_compare_exchange_n(&slots[n].used, &unused, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
      return &slots[n];
  }
  return 0;
}

static void *run_thread(void *given) {
  struct slot *slot = given, copy = *slot;
  __atomic_store_n(&slot->used, 0, __ATOMIC_RELEASE);
  thread_start = clock_ns(CLOCK_REALTIME);
  begin_counting();
  pthread_setspecific(thread_key, slots);
  return copy.function(copy.argument);
}

EXPORT int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*function)(void *),
                          void *argument) {
  static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
  struct slot *slot = 0;
  if (!RESOLVE(real, "pthread_create")) { /* loaded later, outside of the global scope */
    void *library = dlopen("libpthread.so.0", RTLD_LAZY);
    if (library) real = (__typeof__(real))dlsym(library, "pthread_create");
    if (!real) return EAGAIN;
  }
  if (active && has_thread_key) slot = take_slot();
  __atomic_fetch_add(&threads_created, 1, __ATOMIC_RELAXED);
  if (!slot) return real(thread, attributes, function, argument);
  slot->function = function;
  slot->argument = argument;
  int result = real(thread, attributes, run_thread, slot);
  if (result) __atomic_store_n(&slot->used, 0, __ATOMIC_RELEASE);
  return result;
}

/* A shared AddressSanitizer asks for this. Otherwise it ends a program that has any other library before it. */
EXPORT const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "verify_asan_link_order=0"; }

/* Start of the program */

/* On another node of the job it does not exist yet. One that another user has created there is not used. */
static int find_folder(const char *folder) {
  struct stat status;
  memset(&status, 0, sizeof status);
  if (CALL(SYS_newfstatat, AT_FDCWD, folder, &status, AT_SYMLINK_NOFOLLOW)) {
    CALL(SYS_mkdirat, AT_FDCWD, folder, 0700, 0);
    if (CALL(SYS_newfstatat, AT_FDCWD, folder, &status, AT_SYMLINK_NOFOLLOW)) return 0;
  }
  return S_ISDIR(status.st_mode) && (!status.st_uid || (long)status.st_uid == CALL(SYS_geteuid, 0, 0, 0, 0));
}

static int set_path(const char *folder) {
  struct utsname names;
  if (*folder != '/' || strlen(folder) + sizeof names.nodename + 10 > sizeof file_path) return 0;
  memset(&names, 0, sizeof names);
  CALL(SYS_uname, &names, 0, 0, 0);
  for (char *at = names.nodename; *at; at++)
    if (*at == '/') *at = '_';
  strcpy(file_path, folder);
  strcat(file_path, "/");
  strcat(file_path, names.nodename);
  strcat(file_path, ".capture");
  return 1;
}

static void put_link(struct record *record, const char *path) {
  char target[SMALL];
  long length = CALL(SYS_readlinkat, AT_FDCWD, path, target, sizeof target - 1);
  target[length > 0 ? length : 0] = 0;
  put_text(record, target, sizeof target);
}

/* musl does not pass arguments to constructors. */
static void put_own_arguments(struct record *record, char *const *arguments) {
  char text[MOST_ARGUMENTS], *list[64];
  if (arguments) {
    put_arguments(record, arguments);
    return;
  }
  memset(text, 0, sizeof text);
  slurp("/proc/self/cmdline", text, sizeof text);
  int count = 0;
  for (char *at = text; at < text + sizeof text && *at && count < 63; at += strlen(at) + 1) list[count++] = at;
  list[count] = 0;
  put_arguments(record, list);
}

/* What the process has run before the library was loaded: the dynamic linker may take longer than the program. Not
 * more than the time since its start, because an earlier program may have had several threads. */
static uint64_t time_before(void) {
  uint64_t ran = clock_ns(CLOCK_PROCESS_CPUTIME_ID), began = self_ticks * (1000000000u / TICKS);
  uint64_t now = clock_ns(CLOCK_BOOTTIME);
  if (!self_ticks || now < began) return 0;
  return ran < now - began ? ran : now - began;
}

static void note_start(const char **values, char *const *arguments) {
  unsigned char buffer[LARGEST];
  struct record record;
  struct rusage usage;
  memset(&usage, 0, sizeof usage);
  uint64_t before = time_before();
  begin_process(&record, buffer, sizeof buffer, 'S');
  set_time(&record, clock_ns(CLOCK_REALTIME) - before);
  put_group(&record);
  put_number(&record, clock_ns(CLOCK_PROCESS_CPUTIME_ID));
  CALL(SYS_getrusage, RUSAGE_SELF, &usage, 0, 0);
  start_peak = usage.ru_maxrss;
  put_rusage(&record, &usage);
  put_link(&record, "/proc/self/exe");
  put_cwd(&record);
  choose_labels(values);
  put_text(&record, labels.tags, sizeof labels.tags);
  put_text(&record, labels.rank, sizeof labels.rank);
  put_text(&record, labels.step, sizeof labels.step);
  put_own_arguments(&record, arguments);
  append(&record);
}

/* on_exit(3), and not a destructor: it gets the status, and runs after the destructors of all libraries. */
static void note_exit(int status, void *unused) {
  (void)unused;
  if (active) note_end('E', wait_status(status));
}

__attribute__((constructor)) static void start(int count, char **arguments, char **environment) {
  const char *values[VARIABLES] = {0};
  int is_glibc = gnu_get_libc_version != 0;
  (void)count;
  RESOLVE(real_wait4, "wait4");
  RESOLVE(real_waitid, "waitid");
  RESOLVE(real_execvpe, "execvpe");
  RESOLVE(real_fexecve, "fexecve");
  find_variables(is_glibc ? environment : environ, values);
  if (!values[CAPTURE] || !set_path(values[CAPTURE]) || !find_folder(values[CAPTURE])) return;
  self = current_pid();
  self_ticks = read_ticks();
  if (__register_atfork) __register_atfork(0, 0, note_fork, 0);
  if (on_exit) on_exit(note_exit, 0);
  if (pthread_key_create && pthread_setspecific) has_thread_key = !pthread_key_create(&thread_key, end_thread);
  active = 1;
  choose_events(values[COUNTERS]);
  choose_masks(values[MASK]);
  begin_counting();
  note_start(values, is_glibc ? arguments : 0);
}

__attribute__((destructor)) static void end(void) {
  if (active && !on_exit) note_end('E', ABSENT);
}

/* Reads many processes in one call, in their order, from files that are open already (/proc/PID of proc(5)).
 *
 * joblens.collectors.process.native_scan makes the records, and collector.py is the reference: what is done here
 * is what it does for a process that is known and unchanged but for its numbers. All else ends the call at
 * that process, whose record is then as it was, and Python reads it: a file that cannot be read, a text that is not
 * exactly as the kernel writes it, another name, parent, uid or number of threads. So nothing here has to judge.
 */

#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x03090000
#include <Python.h>

#include <stdint.h>
#include <string.h>
#include <unistd.h>

#define BLOCK 64 /* processes between two looks at the list */
#define TEXT 8192
#define ABSENT INT64_MIN
#define STATUS_AGAIN 4 /* as in collector.py */
#define ASLEEP_AGAIN 4
#define KERNEL_THREAD 0x00200000
#define MOST_THREADS 256 /* as in run_delay.py */

enum { PARENT, GROUP, SESSION, TERMINAL, START, IDENTITY };
enum { USER, SYSTEM, CHILDREN_USER, CHILDREN_SYSTEM, MINOR, MAJOR, THREADS, STATE };
enum { AMOUNTS = STATE + 1, IO = AMOUNTS + 7, DELAY = IO + 7, VALUES };
enum { MEMORY = 5, STAT_FIELDS = 22 };

struct thread {
    int64_t fd, delay;
};

/* The same as _RECORD of native_scan.py. */
struct record {
    int64_t schedstat, stat, io, status; /* descriptors, -1 if not open */
    int64_t again_in, asleep_in, status_in, status_is_old, may_sleep;
    int64_t identity[IDENTITY], uid;
    int64_t memory[MEMORY];
    int64_t ended_delay;
    int64_t values[VALUES];
    int64_t name_size, scheduled_size, text_size;
    char name[16], scheduled[64], text[512];
    struct thread threads[];
};

enum outcome { SAME = 0, CHANGED = 1, DUE = 2, LEFT = 4 };

static int is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Skip blanks, and return whether a token begins; it ends at *end. */
static int next_token(const char **at, const char *limit, const char **end)
{
    while (*at < limit && is_space(**at))
        ++*at;
    for (*end = *at; *end < limit && !is_space(**end); ++*end)
        continue;
    return *end > *at;
}

/* Parse a whole number as the kernel prints it. */
static int parse_whole(const char *at, const char *end, int64_t *number)
{
    int negative = at < end && *at == '-';
    uint64_t found = 0;
    at += negative;
    if (at == end || end - at > 18 || (*at == '0' && (negative || end - at > 1)))
        return 0;
    for (; at < end; at++) {
        if (*at < '0' || *at > '9')
            return 0;
        found = found * 10 + (uint64_t)(*at - '0');
    }
    *number = negative ? -(int64_t)found : (int64_t)found;
    return 1;
}

static int next_number(const char **at, const char *limit, int64_t *number)
{
    const char *end;
    if (!next_token(at, limit, &end) || !parse_whole(*at, end, number))
        return 0;
    *at = end;
    return 1;
}

/* Parse the fields of stat that are used, from the state on (field 3 of proc(5)); the others stay 0. */
static int parse_fields(const char *at, const char *limit, int64_t *fields)
{
    const uint32_t used = 0x3a7ade; /* 1 to 4, 6, 7, 9, 11 to 14, 17, 19 to 21 */
    const char *end;
    if (!next_token(&at, limit, &end) || end - at != 1)
        return 0;
    fields[0] = (unsigned char)*at;
    for (int field = 1; field < STAT_FIELDS; field++) {
        at = end;
        if (!next_token(&at, limit, &end) || (used >> field & 1 && !parse_whole(at, end, &fields[field])))
            return 0;
    }
    return 1;
}

/* Parse stat into the new record. Return whether it is the same process, with the same name and threads. */
static int take_stat(const struct record *old, struct record *new)
{
    const char *text = new->text, *limit = text + new->text_size;
    const char *first = memchr(text, '(', (size_t)new->text_size);
    const char *last = memrchr(text, ')', (size_t)new->text_size);
    int64_t fields[STAT_FIELDS] = {0}, *values = new->values;
    if (!first || !last || last < first || last - first - 1 != old->name_size ||
        memcmp(first + 1, old->name, (size_t)old->name_size) != 0 || !parse_fields(last + 1, limit, fields))
        return 0;
    const int64_t identity[IDENTITY] = {fields[1], fields[2], fields[3], fields[4], fields[19]};
    const int64_t memory[MEMORY] = {fields[7], fields[9], fields[17], fields[20], fields[21]};
    if (memcmp(identity, old->identity, sizeof identity) != 0 || fields[6] & KERNEL_THREAD || fields[6] < 0 ||
        fields[17] != old->values[THREADS])
        return 0;
    memcpy(new->memory, memory, sizeof memory);
    for (int place = USER; place <= CHILDREN_SYSTEM; place++)
        values[place] = fields[11 + place];
    values[MINOR] = fields[7];
    values[MAJOR] = fields[9];
    values[STATE] = fields[0];
    return 1;
}

static int take_io(struct record *new, const char *text, ssize_t size)
{
    const char *at = text, *limit = text + size, *end;
    for (int place = IO; place < IO + 7; place++) {
        if (!next_token(&at, limit, &end))
            return 0;
        at = end;
        if (!next_number(&at, limit, &new->values[place]))
            return 0;
    }
    return !next_token(&at, limit, &end);
}

/* Parse an amount of status, with or without its unit, and a newline, which *at is set to. */
static int parse_amount(const char **at, const char *limit, int64_t *amount)
{
    const char *line = memchr(*at, '\n', (size_t)(limit - *at));
    const char *end = line;
    if (!line)
        return 0;
    if (end - *at > 3 && memcmp(end - 3, " kB", 3) == 0)
        end -= 3;
    if (!next_number(at, end, amount) || *at != end)
        return 0;
    *at = line;
    return 1;
}

/* Fields are searched for one after the other, as parse_status does in procfs.py. */
static int take_status(struct record *new, const char *text, ssize_t size)
{
    static const char *const names[] = {
        "\nVmRSS:", "\nRssAnon:", "\nRssFile:", "\nRssShmem:", "\nVmSwap:",
        "\nvoluntary_ctxt_switches:", "\nnonvoluntary_ctxt_switches:",
    };
    const char *limit = text + size;
    const char *at = memmem(text, (size_t)size, "\nUid:\t", 6);
    if (!at)
        return 0;
    const char *uid = at + 6, *end = memchr(uid, '\t', (size_t)(limit - uid));
    int64_t number;
    if (at == text || memmem(text, (size_t)(at - text), "\nUid:", 5) || !end || !parse_whole(uid, end, &number) ||
        number != new->uid)
        return 0;
    for (int place = 0; place < 7; place++) {
        const char *found = memmem(at, (size_t)(limit - at), names[place], strlen(names[place]));
        new->values[AMOUNTS + place] = ABSENT;
        if (!found)
            continue;
        at = found + strlen(names[place]);
        if (!parse_amount(&at, limit, &new->values[AMOUNTS + place]))
            return 0;
    }
    return 1;
}

/* Read how long each thread has waited for a core, and their sum, which never decreases. That of one that may
 * sleep has just been read: it has no other thread. */
static int take_delay(struct record *new, struct thread *threads, const struct thread *old, int64_t count)
{
    int64_t sum = 0, run, all = new->values[THREADS];
    char text[256];
    if (count < 1 || (new->may_sleep && count > 1))
        return 0;
    for (int64_t place = 0; place < count; place++) {
        ssize_t size = new->may_sleep ? new->scheduled_size : pread((int)old[place].fd, text, sizeof text, 0);
        const char *at = new->may_sleep ? new->scheduled : text;
        const char *limit = at + (size > 0 ? size : 0);
        threads[place] = old[place];
        if (size == sizeof text || !next_number(&at, limit, &run) ||
            !next_number(&at, limit, &threads[place].delay) || threads[place].delay < 0 ||
            __builtin_add_overflow(sum, threads[place].delay, &sum))
            return 0;
    }
    if (all > MOST_THREADS) {
        if (__builtin_mul_overflow(sum, all, &sum))
            return 0;
        sum /= count;
    }
    if (__builtin_add_overflow(sum, new->ended_delay, &sum))
        return 0;
    if (sum > new->values[DELAY])
        new->values[DELAY] = sum;
    return 1;
}

static int is_asleep(const struct record *old, struct record *new, enum outcome *outcome)
{
    ssize_t size = pread((int)old->schedstat, new->scheduled, sizeof new->scheduled, 0);
    *outcome = LEFT;
    if (size < 0 || size == sizeof new->scheduled)
        return 1;
    int has_run = size != old->scheduled_size || memcmp(new->scheduled, old->scheduled, (size_t)size) != 0 ||
                  old->values[STATE] == 'R';
    new->scheduled_size = size;
    new->status_is_old = old->status_is_old || has_run;
    new->asleep_in--;
    *outcome = SAME;
    if (!has_run && new->asleep_in >= 0 && !(new->status_is_old && new->status_in <= 0)) {
        new->status_in -= new->status_is_old;
        return 1;
    }
    new->asleep_in = ASLEEP_AGAIN;
    return 0;
}

static enum outcome read_process(const struct record *old, struct record *new, struct thread *threads,
                                 int64_t count, char *text)
{
    enum outcome outcome;
    if (old->may_sleep && is_asleep(old, new, &outcome))
        return outcome;
    if (old->stat < 0 || old->io < 0)
        return LEFT;
    new->again_in--;
    new->text_size = pread((int)old->stat, new->text, sizeof new->text, 0);
    if (new->text_size <= 0 || new->text_size == sizeof new->text)
        return LEFT;
    int is_new = new->text_size != old->text_size || memcmp(new->text, old->text, (size_t)new->text_size) != 0;
    if (is_new && !take_stat(old, new))
        return LEFT;
    ssize_t size = pread((int)old->io, text, TEXT, 0);
    if (size < 0 || size == TEXT || !take_io(new, text, size))
        return LEFT;
    if (--new->status_in < 0 || memcmp(new->memory, old->memory, sizeof new->memory) != 0) {
        size = old->status < 0 ? -1 : pread((int)old->status, text, TEXT, 0);
        if (size < 0 || size == TEXT || !take_status(new, text, size))
            return LEFT;
        new->status_in = STATUS_AGAIN;
        new->status_is_old = 0;
    }
    if ((is_new || new->values[STATE] == 'R') && !take_delay(new, threads, old->threads, count))
        return LEFT;
    outcome = memcmp(new->values, old->values, sizeof new->values) == 0 ? SAME : CHANGED;
    return outcome | (new->again_in < 0 ? DUE : SAME);
}

/* Replace the record by what was read, unless the process is left to Python. */
static enum outcome scan_record(struct record *record, int64_t count, char *text)
{
    struct record new = *record;
    struct thread threads[MOST_THREADS];
    memcpy(threads, record->threads, (size_t)count * sizeof *threads);
    enum outcome outcome = read_process(record, &new, threads, count, text);
    if (outcome != LEFT) {
        *record = new;
        memcpy(record->threads, threads, (size_t)count * sizeof *threads);
    }
    return outcome;
}

/* Return the record of an object and the number of its threads, or NULL. */
static struct record *as_record(PyObject *object, int64_t *count)
{
    if (!object || !PyByteArray_Check(object))
        return NULL;
    size_t size = (size_t)PyByteArray_Size(object);
    if (size < sizeof(struct record) || (size - sizeof(struct record)) % sizeof(struct thread) != 0)
        return NULL;
    struct record *record = (struct record *)PyByteArray_AsString(object);
    *count = (int64_t)((size - sizeof *record) / sizeof(struct thread));
    int fits = *count <= MOST_THREADS && record->name_size >= 0 && record->name_size <= (int64_t)sizeof record->name;
    return fits ? record : NULL;
}

/* Scan up to BLOCK records from `first` on. Return how many are done, -1 for an exception. */
static Py_ssize_t scan_block(PyObject *records, Py_ssize_t first, PyObject *changed, PyObject *due)
{
    PyObject *held[BLOCK];
    struct record *found[BLOCK];
    int64_t threads[BLOCK];
    enum outcome outcomes[BLOCK];
    Py_ssize_t size = PyList_Size(records), count = 0, done = 0;
    int failed = 0;
    while (count < BLOCK && first + count < size) {
        PyObject *object = PyList_GetItem(records, first + count);
        if (!(found[count] = as_record(object, &threads[count])))
            break;
        Py_INCREF(object); /* it stays while other threads of Python run */
        held[count++] = object;
    }
    Py_BEGIN_ALLOW_THREADS
    char text[TEXT];
    while (done < count && (outcomes[done] = scan_record(found[done], threads[done], text)) != LEFT)
        done++;
    Py_END_ALLOW_THREADS
    for (Py_ssize_t place = 0; place < count; place++) {
        if (place < done && outcomes[place] != SAME && !failed) {
            PyObject *number = PyLong_FromSsize_t(first + place);
            failed = !number || (outcomes[place] & CHANGED && PyList_Append(changed, number) < 0) ||
                     (outcomes[place] & DUE && PyList_Append(due, number) < 0);
            Py_XDECREF(number);
        }
        Py_DECREF(held[place]);
    }
    return failed ? -1 : done;
}

/* scan_settled(records, first, changed, due): the place at which it stopped. Appended are the places of those
 * that changed, and of those whose cgroup has to be read again. */
PyObject *joblens_scan_settled(PyObject *self, PyObject *arguments)
{
    PyObject *records, *changed, *due;
    Py_ssize_t first, done;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OnOO", &records, &first, &changed, &due))
        return NULL;
    if (!PyList_Check(records) || !PyList_Check(changed) || !PyList_Check(due) || first < 0) {
        PyErr_SetString(PyExc_TypeError, "scan_settled: expected a list, a place in it, and two lists");
        return NULL;
    }
    do {
        if ((done = scan_block(records, first, changed, due)) < 0)
            return NULL;
        first += done;
    } while (done == BLOCK);
    return PyLong_FromSsize_t(first);
}

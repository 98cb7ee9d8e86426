/* Records of captured processes, merged to one row per process and per thread.
 *
 * The twin of joblens.capture.processes, which says what the records mean: for jobs of many processes, at a tenth of its
 * time. A test holds both to the same rows. Texts are numbered; Python decodes each of them once.
 */

#define _GNU_SOURCE /* memmem */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x03090000 /* one library for all later versions of Python */
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ABSENT INT64_MIN
#define MOST ((uint64_t)1 << 62)
#define MOST_PID ((int64_t)1 << 31)
#define HEADER 12
#define LARGEST 4096
#define NONE (-1)

enum { START, FORK, EXEC, EXEC_FAILED, SPAWN, WAIT, END, LAST, THREAD, COUNTS, KINDS };
static const char LETTERS[KINDS + 1] = "SFXYPWELTC";

/* Places of fields, see FIELDS in joblens.capture.records. */
enum { TIME, PID, BEGUN, PARENT, FIFTH, SIXTH, SEVENTH, START_PEAK = 10 };
#define STATUS SIXTH      /* of WAIT: what the kernel reports begins there */
#define ENDING 10         /* and has as many fields */
#define WAIT_USER SEVENTH /* of WAIT */

typedef struct {
    int64_t *at;
    size_t count, room;
} Numbers;

typedef struct {
    char *at;
    size_t count, room;
} Bytes;

/* Columns of the result, in the order in which they are returned. */
enum {
    P_PID, P_START, P_PARENT, P_GROUP, P_SESSION, P_UID, P_PROGRAM, P_NEXT, P_IMAGES, P_BEGAN, P_ENDED, P_END, P_LAST,
    P_WAIT, P_PEAK, /* of processes; the peak is that before its program */
    PROGRAM_TEXT, /* of programs: the number of its texts */
    T_PROCESS, T_START, T_IMAGE, T_COUNTS, T_NAME, /* of threads */
    C_PROCESS, C_IMAGE, /* of counts */
    WRITERS, /* of waits: the process that has waited, or NONE */
    WAITS, ENDS, THREADS, COUNTS_ROWS, /* whole records */
    TEXT_ENDS, /* where each text ends */
    COLUMNS
};

typedef struct {
    Numbers columns[COLUMNS];
    Bytes texts;         /* one after the other */
    Numbers text_slots;  /* hash table of texts: their number + 1 */
    Numbers text_program; /* of each text: the program that starts with it, or NONE */
    Numbers pid_keys, pid_slots; /* hash table of pids: the number of the process + 1 */
    size_t pids;
    Bytes rest;
    int64_t widths[KINDS];
    uint64_t key[2]; /* of the hash tables, random */
    int64_t places, bytes; /* of damage */
    int failed;            /* no memory */
} Merger;

static int reserve(void **at, size_t *room, size_t count, size_t size)
{
    if (count <= *room)
        return 1;
    size_t more = *room ? *room : 64;
    while (more < count)
        more += more / 2;
    void *found = realloc(*at, more * size);
    if (!found)
        return 0;
    *at = found;
    *room = more;
    return 1;
}

static void push(Merger *merger, Numbers *numbers, int64_t value)
{
    if (!reserve((void **)&numbers->at, &numbers->room, numbers->count + 1, sizeof(int64_t)))
        merger->failed = 1;
    else
        numbers->at[numbers->count++] = value;
}

static void push_bytes(Merger *merger, Bytes *bytes, const char *data, size_t size)
{
    if (!reserve((void **)&bytes->at, &bytes->room, bytes->count + size, 1)) {
        merger->failed = 1;
        return;
    }
    if (size)
        memcpy(bytes->at + bytes->count, data, size);
    bytes->count += size;
}

static uint64_t rotate(uint64_t value, int by)
{
    return value << by | value >> (64 - by);
}

static void mix(uint64_t state[4])
{
    state[0] += state[1];
    state[2] += state[3];
    state[1] = rotate(state[1], 13) ^ state[0];
    state[3] = rotate(state[3], 16) ^ state[2];
    state[0] = rotate(state[0], 32);
    state[2] += state[1];
    state[0] += state[3];
    state[1] = rotate(state[1], 17) ^ state[2];
    state[3] = rotate(state[3], 21) ^ state[0];
    state[2] = rotate(state[2], 32);
}

/* SipHash-1-3. Records are of any user: who does not know the key cannot choose what falls into one place. */
static uint64_t hash(const Merger *merger, const void *data, size_t size)
{
    const char *at = data;
    const uint64_t *key = merger->key;
    uint64_t word, last = (uint64_t)size << 56;
    uint64_t state[4] = {
        key[0] ^ UINT64_C(0x736F6D6570736575), key[1] ^ UINT64_C(0x646F72616E646F6D),
        key[0] ^ UINT64_C(0x6C7967656E657261), key[1] ^ UINT64_C(0x7465646279746573),
    };
    for (; size >= 8; at += 8, size -= 8) {
        memcpy(&word, at, 8);
        state[3] ^= word;
        mix(state);
        state[0] ^= word;
    }
    for (size_t place = 0; place < size; place++)
        last |= (uint64_t)(unsigned char)at[place] << 8 * place;
    state[3] ^= last;
    mix(state);
    state[0] ^= last;
    state[2] ^= 0xFF;
    for (int round = 0; round < 3; round++)
        mix(state);
    return state[0] ^ state[1] ^ state[2] ^ state[3];
}

/* Give a hash table room for one more. Slots are 0 where nothing is. Return whether it has to be filled again. */
static int grow(Merger *merger, Numbers *slots, size_t used)
{
    if (2 * (used + 1) <= slots->count)
        return 0;
    size_t count = slots->count ? 2 * slots->count : 1024;
    int64_t *found = calloc(count, sizeof(int64_t));
    if (!found) {
        merger->failed = 1;
        return 0;
    }
    free(slots->at);
    slots->at = found;
    slots->count = slots->room = count;
    return 1;
}

static const char *text_at(const Merger *merger, int64_t number, size_t *size)
{
    const int64_t *ends = merger->columns[TEXT_ENDS].at;
    int64_t begin = number ? ends[number - 1] : 0;
    *size = (size_t)(ends[number] - begin);
    return merger->texts.at + begin;
}

/* Return the number of a text, which is a new one if there is none like it. */
static int64_t number_of(Merger *merger, const char *text, size_t size)
{
    Numbers *slots = &merger->text_slots;
    size_t known = merger->columns[TEXT_ENDS].count, length;
    if (grow(merger, slots, known))
        for (size_t number = 0; number < known; number++) {
            const char *other = text_at(merger, (int64_t)number, &length);
            size_t slot = hash(merger, other, length) & (slots->count - 1);
            while (slots->at[slot])
                slot = (slot + 1) & (slots->count - 1);
            slots->at[slot] = (int64_t)number + 1;
        }
    if (merger->failed)
        return 0;
    size_t slot = hash(merger, text, size) & (slots->count - 1);
    for (; slots->at[slot]; slot = (slot + 1) & (slots->count - 1)) {
        const char *other = text_at(merger, slots->at[slot] - 1, &length);
        if (length == size && (!size || memcmp(other, text, size) == 0))
            return slots->at[slot] - 1;
    }
    slots->at[slot] = (int64_t)known + 1;
    push_bytes(merger, &merger->texts, text, size);
    push(merger, &merger->columns[TEXT_ENDS], (int64_t)merger->texts.count);
    push(merger, &merger->text_program, NONE);
    return (int64_t)known;
}

/* Whether the first text is there and not empty. */
static int has_first(const char *text, size_t size)
{
    return size && *text && memchr(text, 0, size);
}

static int64_t find_slot(const Merger *merger, int64_t pid)
{
    size_t mask = merger->pid_slots.count - 1, slot = hash(merger, &pid, sizeof pid) & mask;
    while (merger->pid_slots.at[slot] && merger->pid_keys.at[slot] != pid)
        slot = (slot + 1) & mask;
    return (int64_t)slot;
}

/* Return the last process with the pid, or NONE. */
static int64_t by_pid(const Merger *merger, int64_t pid)
{
    if (!merger->pid_slots.count)
        return NONE;
    return merger->pid_slots.at[find_slot(merger, pid)] - 1;
}

static void set_pid(Merger *merger, int64_t pid, int64_t number)
{
    Numbers old_keys = merger->pid_keys, old_slots = merger->pid_slots;
    if (2 * (merger->pids + 1) > old_slots.count) {
        Numbers none = {NULL, 0, 0};
        merger->pid_keys = merger->pid_slots = none;
        merger->pid_slots.count = merger->pid_keys.count = old_slots.count; /* twice as many */
        if (!grow(merger, &merger->pid_slots, old_slots.count) || !grow(merger, &merger->pid_keys, old_slots.count)) {
            free(merger->pid_slots.at);
            merger->pid_keys = old_keys;
            merger->pid_slots = old_slots;
            merger->failed = 1;
            return;
        }
        for (size_t slot = 0; slot < old_slots.count; slot++)
            if (old_slots.at[slot]) {
                int64_t other = find_slot(merger, old_keys.at[slot]);
                merger->pid_keys.at[other] = old_keys.at[slot];
                merger->pid_slots.at[other] = old_slots.at[slot];
            }
        free(old_keys.at);
        free(old_slots.at);
    }
    int64_t slot = find_slot(merger, pid);
    merger->pids += !merger->pid_slots.at[slot];
    merger->pid_keys.at[slot] = pid;
    merger->pid_slots.at[slot] = number + 1;
}

#define OF(column, number) (merger->columns[column].at[number])

static int64_t new_process(Merger *merger, int64_t pid, int64_t start, int64_t parent)
{
    static const struct {
        int column;
        int64_t value;
    } first[] = {
        {P_GROUP, 0}, {P_SESSION, 0}, {P_UID, -1}, {P_PROGRAM, 0}, {P_NEXT, 0}, {P_IMAGES, 0}, {P_BEGAN, ABSENT},
        {P_ENDED, ABSENT}, {P_END, NONE}, {P_LAST, 0}, {P_WAIT, NONE}, {P_PEAK, ABSENT},
    };
    int64_t number = (int64_t)merger->columns[P_PID].count;
    push(merger, &merger->columns[P_PID], pid);
    push(merger, &merger->columns[P_START], start);
    push(merger, &merger->columns[P_PARENT], parent);
    for (size_t at = 0; at < sizeof first / sizeof *first; at++)
        push(merger, &merger->columns[first[at].column], first[at].value);
    set_pid(merger, pid, number);
    return number;
}

static int64_t find_process(Merger *merger, int64_t pid, int64_t start, int64_t parent)
{
    int64_t number = by_pid(merger, pid);
    if (number == NONE)
        return new_process(merger, pid, start, parent);
    int64_t known = OF(P_START, number);
    if (known != start && (OF(P_WAIT, number) != NONE || (known && start)))
        return new_process(merger, pid, start, parent);
    if (!known)
        OF(P_START, number) = start;
    return number;
}

static void see(Merger *merger, int64_t number, int64_t time)
{
    if (OF(P_BEGAN, number) == ABSENT || time < OF(P_BEGAN, number))
        OF(P_BEGAN, number) = time;
}

/* Return the number of the program with these texts. 0 is that none is known. */
static int64_t program_of(Merger *merger, const char *text, size_t size)
{
    int64_t named = number_of(merger, text, size);
    if (merger->failed)
        return 0;
    if (merger->text_program.at[named] == NONE) {
        push(merger, &merger->columns[PROGRAM_TEXT], named);
        merger->text_program.at[named] = (int64_t)merger->columns[PROGRAM_TEXT].count;
    }
    return merger->text_program.at[named];
}

static int64_t named_program_of(Merger *merger, const char *text, size_t size)
{
    return has_first(text, size) ? program_of(merger, text, size) : 0;
}

static int64_t add_record(Merger *merger, int column, const int64_t *fields, int64_t width)
{
    int64_t row = (int64_t)merger->columns[column].count / width;
    for (int64_t at = 0; at < width; at++)
        push(merger, &merger->columns[column], fields[at]);
    return row;
}

static void be_born(Merger *merger, int64_t number, const int64_t *fields)
{
    OF(P_GROUP, number) = fields[FIFTH] == ABSENT ? 0 : fields[FIFTH];
    OF(P_SESSION, number) = fields[SIXTH] == ABSENT ? 0 : fields[SIXTH];
    OF(P_UID, number) = fields[SEVENTH] == ABSENT ? -1 : fields[SEVENTH];
    if (!OF(P_PARENT, number))
        OF(P_PARENT, number) = fields[PARENT];
    see(merger, number, fields[TIME]);
}

static void take_spawn(Merger *merger, const int64_t *fields, const char *text, size_t size)
{
    int64_t child = fields[FIFTH], before = fields[SIXTH] == ABSENT ? 0 : fields[SIXTH];
    if (child < 0 || child >= MOST_PID)
        return;
    int64_t number = by_pid(merger, child);
    if (number != NONE && OF(P_WAIT, number) != NONE) {
        int64_t ended = OF(P_ENDED, number);
        if ((ended < 0 ? 0 : ended) < before)
            number = NONE;
    }
    if (number == NONE)
        number = new_process(merger, child, 0, fields[PID]);
    if (merger->failed)
        return;
    if (!OF(P_IMAGES, number) && !OF(P_NEXT, number)) {
        OF(P_NEXT, number) = named_program_of(merger, text, size);
        OF(P_PEAK, number) = fields[SEVENTH];
    }
    see(merger, number, before);
}

/* A debugger waits for a process before its parent does. */
static int is_same_wait(const Merger *merger, int64_t number, int64_t writer, const int64_t *fields)
{
    int64_t before = OF(P_WAIT, number), width = merger->widths[WAIT];
    if (before == NONE || OF(WRITERS, before) == writer || fields[WAIT_USER] == ABSENT)
        return 0;
    return memcmp(&OF(WAITS, before * width + STATUS), fields + STATUS,
                  ENDING * sizeof(int64_t)) == 0;
}

static void take_wait(Merger *merger, const int64_t *fields)
{
    int64_t child = fields[FIFTH];
    if (child < 0 || child >= MOST_PID)
        return;
    int64_t writer = fields[PID] ? find_process(merger, fields[PID], fields[BEGUN], fields[PARENT]) : NONE;
    int64_t number = by_pid(merger, child);
    if (merger->failed)
        return;
    if (number == NONE || (OF(P_WAIT, number) != NONE && !is_same_wait(merger, number, writer, fields))) {
        number = new_process(merger, child, 0, fields[PID]);
        if (merger->failed)
            return;
        OF(P_PROGRAM, number) = writer == NONE ? 0 : OF(P_PROGRAM, writer);
    }
    OF(P_WAIT, number) = add_record(merger, WAITS, fields, merger->widths[WAIT]);
    OF(P_ENDED, number) = fields[TIME];
    push(merger, &merger->columns[WRITERS], writer);
}

static void take_end(Merger *merger, int64_t number, const int64_t *fields, int is_last)
{
    see(merger, number, fields[TIME]);
    OF(P_END, number) = add_record(merger, ENDS, fields, merger->widths[END]);
    OF(P_LAST, number) = is_last;
    if (OF(P_WAIT, number) == NONE)
        OF(P_ENDED, number) = is_last ? ABSENT : fields[TIME];
}

static void take_of_process(Merger *merger, int kind, const int64_t *fields, const char *text, size_t size)
{
    int64_t above = kind == FORK ? by_pid(merger, fields[PARENT]) : NONE;
    int64_t number = find_process(merger, fields[PID], fields[BEGUN], fields[PARENT]);
    if (merger->failed)
        return;
    switch (kind) {
    case START:
        OF(P_PROGRAM, number) = program_of(merger, text, size);
        OF(P_NEXT, number) = 0;
        OF(P_PEAK, number) = fields[START_PEAK];
        OF(P_IMAGES, number)++;
        be_born(merger, number, fields);
        break;
    case FORK:
        if (above != NONE && !OF(P_IMAGES, number))
            OF(P_PROGRAM, number) = OF(P_PROGRAM, above);
        OF(P_PEAK, number) = 0;
        be_born(merger, number, fields);
        break;
    case EXEC:
        see(merger, number, fields[TIME]);
        OF(P_NEXT, number) = named_program_of(merger, text, size);
        OF(P_PEAK, number) = fields[FIFTH];
        break;
    case EXEC_FAILED:
        OF(P_NEXT, number) = 0;
        break;
    case END:
    case LAST:
        take_end(merger, number, fields, kind == LAST);
        break;
    case THREAD:
        add_record(merger, THREADS, fields, merger->widths[THREAD]);
        push(merger, &merger->columns[T_PROCESS], number);
        push(merger, &merger->columns[T_START], OF(P_START, number));
        push(merger, &merger->columns[T_IMAGE], OF(P_IMAGES, number));
        push(merger, &merger->columns[T_COUNTS], (int64_t)merger->columns[C_PROCESS].count);
        push(merger, &merger->columns[T_NAME], number_of(merger, text, size));
        break;
    case COUNTS:
        add_record(merger, COUNTS_ROWS, fields, merger->widths[COUNTS]);
        push(merger, &merger->columns[C_PROCESS], number);
        push(merger, &merger->columns[C_IMAGE], OF(P_IMAGES, number));
        break;
    }
}

static void take_record(Merger *merger, const unsigned char *record, size_t size, size_t count)
{
    const char *letter = record[10] ? strchr(LETTERS, record[10]) : NULL;
    if (!letter)
        return;
    int kind = (int)(letter - LETTERS);
    int64_t fields[256];
    size_t width = (size_t)merger->widths[kind];
    for (size_t at = 0; at < width; at++) {
        uint64_t value = UINT64_MAX;
        if (at < count)
            memcpy(&value, record + HEADER + 8 * at, 8);
        fields[at] = value >= MOST ? ABSENT : (int64_t)value; /* unknown, or what no kernel reports */
    }
    if (fields[TIME] == ABSENT || fields[PID] < 0 || fields[PID] >= MOST_PID)
        return;
    if (fields[BEGUN] == ABSENT)
        fields[BEGUN] = 0;
    if (fields[PARENT] == ABSENT)
        fields[PARENT] = 0;
    const char *text = (const char *)record + HEADER + 8 * count;
    size_t letters = size - HEADER - 8 * count;
    if (kind == SPAWN)
        take_spawn(merger, fields, text, letters);
    else if (kind == WAIT)
        take_wait(merger, fields);
    else
        take_of_process(merger, kind, fields, text, letters);
}

static uint32_t adler32(const unsigned char *data, size_t size)
{
    uint32_t low = 1, high = 0;
    while (size) {
        size_t some = size < 5552 ? size : 5552; /* as many as fit before a sum overflows */
        size -= some;
        for (; some; some--) {
            low += *data++;
            high += low;
        }
        low %= 65521;
        high %= 65521;
    }
    return high << 16 | low;
}

static int is_record(const unsigned char *data, size_t room, size_t *size, size_t *count)
{
    uint32_t checksum;
    uint16_t whole;
    if (room < HEADER || memcmp(data, "JLC1", 4))
        return 0;
    memcpy(&checksum, data + 4, 4);
    memcpy(&whole, data + 8, 2);
    *size = whole;
    *count = data[11];
    if (*size < HEADER + 8 * *count || *size > LARGEST || *size > room)
        return 0;
    return adler32(data + 8, *size - 8) == checksum;
}

/* Take the records that begin before that place. Return where the next one begins. */
static size_t scan(Merger *merger, const unsigned char *data, size_t size, size_t until)
{
    size_t at = 0, whole, count;
    while (at < until && !merger->failed) {
        if (is_record(data + at, size - at, &whole, &count)) {
            take_record(merger, data + at, whole, count);
            at += whole;
            continue;
        }
        const unsigned char *following = memmem(data + at + 1, size - at - 1, "JLC1", 4);
        size_t end = following ? (size_t)(following - data) : size;
        merger->places++;
        merger->bytes += (int64_t)(end - at);
        at = end;
    }
    return at;
}

static void take_piece(Merger *merger, const char *piece, size_t size, int is_last)
{
    push_bytes(merger, &merger->rest, piece, size);
    if (merger->failed)
        return;
    size_t all = merger->rest.count, until = is_last ? all : all > LARGEST ? all - LARGEST : 0;
    size_t at = scan(merger, (const unsigned char *)merger->rest.at, all, until);
    merger->rest.count = all - at;
    if (at && merger->rest.count)
        memmove(merger->rest.at, merger->rest.at + at, merger->rest.count);
}

static void free_merger(PyObject *capsule)
{
    Merger *merger = PyCapsule_GetPointer(capsule, "records");
    if (!merger)
        return;
    for (int column = 0; column < COLUMNS; column++)
        free(merger->columns[column].at);
    free(merger->texts.at);
    free(merger->text_slots.at);
    free(merger->text_program.at);
    free(merger->pid_keys.at);
    free(merger->pid_slots.at);
    free(merger->rest.at);
    free(merger);
}

/* By os.urandom, which knows what the system has. */
static int choose_key(Merger *merger)
{
    char *bytes;
    Py_ssize_t size;
    PyObject *os = PyImport_ImportModule("os"), *found = NULL;
    int good = os && (found = PyObject_CallMethod(os, "urandom", "i", (int)sizeof merger->key))
        && PyBytes_AsStringAndSize(found, &bytes, &size) == 0 && size == sizeof merger->key;
    if (good)
        memcpy(merger->key, bytes, sizeof merger->key);
    Py_XDECREF(found);
    Py_XDECREF(os);
    return good;
}

PyObject *joblens_new_records(PyObject *self, PyObject *arguments)
{
    const char *widths;
    Py_ssize_t count;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "y#", &widths, &count))
        return NULL;
    if (count != KINDS) {
        PyErr_SetString(PyExc_ValueError, "one width for each kind of record");
        return NULL;
    }
    Merger *merger = calloc(1, sizeof *merger);
    if (!merger)
        return PyErr_NoMemory();
    if (!choose_key(merger)) {
        free(merger);
        return NULL;
    }
    for (int kind = 0; kind < KINDS; kind++)
        merger->widths[kind] = (unsigned char)widths[kind];
    PyObject *capsule = PyCapsule_New(merger, "records", free_merger);
    if (!capsule)
        free(merger);
    return capsule;
}

PyObject *joblens_take_records(PyObject *self, PyObject *arguments)
{
    PyObject *capsule;
    const char *piece;
    Py_ssize_t size;
    int is_last;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "Oy#p", &capsule, &piece, &size, &is_last))
        return NULL;
    Merger *merger = PyCapsule_GetPointer(capsule, "records");
    if (!merger)
        return NULL;
    take_piece(merger, piece, (size_t)size, is_last);
    if (merger->failed)
        return PyErr_NoMemory();
    return Py_BuildValue("LL", (long long)merger->places, (long long)merger->bytes);
}

/* The bytes of a column are copied, and then freed here. */
static int add_bytes(PyObject *list, void **at, size_t size)
{
    PyObject *bytes = PyBytes_FromStringAndSize(*at, (Py_ssize_t)size);
    free(*at);
    *at = NULL;
    int failed = !bytes || PyList_Append(list, bytes) < 0;
    Py_XDECREF(bytes);
    return !failed;
}

PyObject *joblens_merged_records(PyObject *self, PyObject *arguments)
{
    PyObject *capsule, *list;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "O", &capsule))
        return NULL;
    Merger *merger = PyCapsule_GetPointer(capsule, "records");
    if (!merger || !(list = PyList_New(0)))
        return NULL;
    free(merger->rest.at);
    free(merger->text_slots.at);
    merger->rest.at = NULL;
    merger->text_slots.at = NULL;
    int good = 1;
    for (int column = 0; good && column < COLUMNS; column++) {
        Numbers *numbers = &merger->columns[column];
        good = add_bytes(list, (void **)&numbers->at, numbers->count * sizeof(int64_t));
        numbers->count = numbers->room = 0;
    }
    good = good && add_bytes(list, (void **)&merger->texts.at, merger->texts.count);
    if (!good)
        Py_CLEAR(list);
    return list;
}

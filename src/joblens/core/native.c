/* What is worth C: reading counter files whose form is known, processes (process_scan.c), records of captured
 * processes (capture_records.c), batches (batch_sections.c, batch_rows.c), and prctl(2) without
 * loading ctypes.
 *
 * A form describes the text of a file token by token (joblens.core.counter_file makes it). A text that differs
 * from it in anything but the digits of its values is left to the parsers in Python, and so are values that do
 * not fit into 63 bits. So nothing here has to judge a text: it is either exactly as expected or not read.
 */

#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x03090000 /* one library for all later versions of Python */
#include <Python.h>

#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define SMALL (1 << 14)
#define LARGEST (1 << 22) /* bytes: more is left to Python */
#define MOST_VALUES 512   /* that need no allocation */
#define MOST_FILES 32     /* of a round */
#define ROUND_BYTES (1 << 24)
#define LONGEST_INTERVAL (3600LL * 1000000000)

/* Operations of a form; T and L are followed by a length of two bytes and the text. */
enum {
    TEXT = 'T',    /* a token that must be the same */
    REST = 'L',    /* the rest of the line, blanks included, that must be the same */
    VALUE = 'V',   /* a number */
    DECIMAL = 'D', /* a number with two decimals, as hundredths */
    PAIR = 'S',    /* two numbers, separated by a slash */
    ADD = '+',     /* a number that is added to the value before it */
    NONZERO = 'Z', /* the value before it must not be 0 */
    ANY = 'A',     /* a token that does not matter */
    IGNORED = 'E', /* the rest of the line, which does not matter */
    NEWLINE = 'N',
};

static int is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f';
}

/* Return the end of the token at `at`. */
static const char *token_end(const char *at, const char *end)
{
    while (at < end && *at != '\n' && !is_blank(*at))
        at++;
    return at;
}

static const char *line_end(const char *at, const char *end)
{
    const char *found = memchr(at, '\n', (size_t)(end - at));
    return found ? found : end;
}

/* Parse digits only. Return their end, or NULL if it is no such number of at most 63 bits. */
static const char *parse_digits(const char *at, const char *end, int64_t *number)
{
    const char *begin = at;
    uint64_t found = 0;
    for (; at < end && *at >= '0' && *at <= '9'; at++) {
        if (at - begin >= 19)
            return NULL;
        found = found * 10 + (uint64_t)(*at - '0'); /* 19 digits fit into 64 bits */
    }
    if (at == begin || found > INT64_MAX)
        return NULL;
    *number = (int64_t)found;
    return at;
}

/* Parse a token of digits. */
static const char *parse_number(const char *at, const char *end, int64_t *number)
{
    at = parse_digits(at, end, number);
    return at && token_end(at, end) == at ? at : NULL;
}

/* Parse two numbers with this character between them. */
static const char *parse_two(const char *at, const char *end, char between, int64_t *first, int64_t *second)
{
    at = parse_digits(at, end, first);
    return at && at < end && *at == between ? parse_number(at + 1, end, second) : NULL;
}

static const char *parse_decimal(const char *at, const char *end, int64_t *hundredths)
{
    int64_t decimals;
    at = parse_two(at, end, '.', hundredths, &decimals);
    if (!at || at[-3] != '.' || __builtin_mul_overflow(*hundredths, 100, hundredths) ||
        __builtin_add_overflow(*hundredths, decimals, hundredths))
        return NULL;
    return at;
}

/* Match a text with a form, and fill `values`. Return how many there are, or -1 if they do not match. */
static Py_ssize_t match(const char *at, const char *end, const char *form, const char *form_end, int64_t *values,
                        Py_ssize_t most)
{
    Py_ssize_t count = 0;
    while (form < form_end) {
        char operation = *form++;
        while (operation != REST && operation != NONZERO && at < end && is_blank(*at))
            at++;
        if (operation == NONZERO) {
            if (count == 0 || values[count - 1] == 0)
                return -1;
        } else if (operation == NEWLINE) {
            if (at >= end || *at++ != '\n')
                return -1;
        } else if (operation == TEXT || operation == REST) {
            if (form_end - form < 2)
                return -1;
            size_t length = (size_t)(unsigned char)form[0] | (size_t)(unsigned char)form[1] << 8;
            form += 2;
            if ((size_t)(form_end - form) < length)
                return -1;
            if ((size_t)(end - at) < length || memcmp(at, form, length) != 0)
                return -1;
            at += length;
            form += length;
            if (at < end && *at != '\n' && (operation == REST || !is_blank(*at)))
                return -1;
        } else if (operation == VALUE || operation == ADD) {
            int64_t number;
            at = parse_number(at, end, &number);
            if (at == NULL)
                return -1;
            if (operation == VALUE) {
                if (count >= most)
                    return -1;
                values[count++] = number;
            } else if (count == 0 || __builtin_add_overflow(values[count - 1], number, &values[count - 1])) {
                return -1;
            }
        } else if (operation == DECIMAL || operation == PAIR) {
            Py_ssize_t more = operation == PAIR ? 2 : 1;
            if (count + more > most)
                return -1;
            at = operation == PAIR ? parse_two(at, end, '/', &values[count], &values[count + 1])
                                   : parse_decimal(at, end, &values[count]);
            if (at == NULL)
                return -1;
            count += more;
        } else if (operation == ANY) {
            const char *until = token_end(at, end);
            if (until == at)
                return -1;
            at = until;
        } else if (operation == IGNORED) {
            at = line_end(at, end);
        } else {
            return -1;
        }
    }
    return at == end ? count : -1;
}

static PyObject *none(void)
{
    Py_INCREF(Py_None);
    return Py_None;
}

static PyObject *make_list(const int64_t *values, Py_ssize_t count)
{
    PyObject *list = PyList_New(count);
    for (Py_ssize_t place = 0; list && place < count; place++) {
        PyObject *number = PyLong_FromLongLong(values[place]);
        if (!number || PyList_SetItem(list, place, number) < 0) {
            Py_DECREF(list);
            return NULL;
        }
    }
    return list;
}

static PyObject *match_list(const char *text, Py_ssize_t size, const char *form, Py_ssize_t form_size,
                            Py_ssize_t most)
{
    int64_t few[MOST_VALUES], *values = few;
    if (most < 0 || most > LARGEST)
        return none();
    if (most > MOST_VALUES && !(values = malloc((size_t)most * sizeof *values)))
        return PyErr_NoMemory();
    Py_ssize_t count = match(text, text + size, form, form + form_size, values, most);
    PyObject *found = count == most ? make_list(values, count) : none();
    if (values != few)
        free(values);
    return found;
}

/* Read a whole file. Return its size, or -1 if it cannot be read or is too large. `*text` may be replaced. */
static Py_ssize_t read_whole(int fd, char **text, size_t room)
{
    size_t size = 0;
    char *small = *text;
    for (;;) {
        if (size == room) {
            char *larger = room < LARGEST ? malloc(room * 4) : NULL;
            if (!larger)
                return -1;
            memcpy(larger, *text, size);
            if (*text != small)
                free(*text);
            *text = larger;
            room *= 4;
        }
        ssize_t found = pread(fd, *text + size, room - size, (off_t)size);
        if (found < 0)
            return -1;
        if (found == 0) /* a seq_file returns about a page per read: only an empty read is the end */
            return (Py_ssize_t)size;
        size += (size_t)found;
    }
}

PyDoc_STRVAR(read_values_doc, "read_values(fd, form, count): the values of an open file, None if it has another form");

static PyObject *read_values(PyObject *self, PyObject *arguments)
{
    int fd;
    const char *form;
    Py_ssize_t form_size, most, size;
    char small[SMALL], *text = small;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "iy#n", &fd, &form, &form_size, &most))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    size = read_whole(fd, &text, sizeof small);
    Py_END_ALLOW_THREADS
    PyObject *found = size < 0 ? none() : match_list(text, size, form, form_size, most);
    if (text != small)
        free(text);
    return found;
}

PyDoc_STRVAR(match_values_doc, "match_values(text, form, count): the values of a text, None if it has another form");

static PyObject *match_values(PyObject *self, PyObject *arguments)
{
    const char *text, *form;
    Py_ssize_t size, form_size, most;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "y#y#n", &text, &size, &form, &form_size, &most))
        return NULL;
    return match_list(text, size, form, form_size, most);
}

struct file {
    int fd;
    const char *form;
    Py_ssize_t form_size, count;
};

static int64_t clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Wait until then. Return 0 if a descriptor is ready or a signal comes first. */
static int wait_until(int poll_fd, int64_t due)
{
    struct pollfd polled = {poll_fd, POLLIN, 0};
    int64_t left = due - clock_ns(CLOCK_MONOTONIC);
    left = left > 0 ? left : 0;
    struct timespec timeout = {left / 1000000000, left % 1000000000};
    return ppoll(&polled, 1, &timeout, NULL) == 0;
}

/* Fill a round: its time, how long each file has taken, and the values of all. Return whether all match. */
static int read_round(const struct file *files, Py_ssize_t count, int64_t *round)
{
    int64_t *durations = round + 1, *values = durations + count, begin = clock_ns(CLOCK_MONOTONIC);
    round[0] = clock_ns(CLOCK_REALTIME);
    for (Py_ssize_t place = 0; place < count; place++) {
        const struct file *file = &files[place];
        char small[SMALL], *text = small;
        Py_ssize_t size = read_whole(file->fd, &text, sizeof small), found = -1;
        if (size >= 0)
            found = match(text, text + size, file->form, file->form + file->form_size, values, file->count);
        if (text != small)
            free(text);
        if (found != file->count)
            return 0;
        values += found;
        int64_t now = clock_ns(CLOCK_MONOTONIC);
        durations[place] = now - begin;
        begin = now;
    }
    return 1;
}

/* Return how many rounds were read. A round that is late by an interval is the last one. */
static Py_ssize_t run_rounds(int poll_fd, const struct file *files, Py_ssize_t count, int64_t due,
                             int64_t interval, int64_t *rounds, Py_ssize_t width, Py_ssize_t most)
{
    Py_ssize_t done = 0;
    while (done < most && wait_until(poll_fd, due) && read_round(files, count, rounds + done * width)) {
        done++;
        due += interval;
        if (clock_ns(CLOCK_MONOTONIC) >= due)
            break;
    }
    return done;
}

/* Take the files from a tuple of tuples, which keeps their forms. Return the values of a round, or -1. */
static Py_ssize_t take_files(PyObject *given, struct file *files)
{
    Py_ssize_t count = PyTuple_Size(given), width = 1 + count;
    for (Py_ssize_t place = 0; place < count; place++) {
        PyObject *item = PyTuple_GetItem(given, place);
        struct file *file = &files[place];
        if (!PyTuple_Check(item) ||
            !PyArg_ParseTuple(item, "iy#n", &file->fd, &file->form, &file->form_size, &file->count))
            return -1;
        if (file->count < 0 || file->count > LARGEST)
            return -1;
        width += file->count;
    }
    return width;
}

PyDoc_STRVAR(read_rounds_doc,
             "read_rounds(poll_fd, files, due_ns, interval_ns, most): rounds of open files (fd, form, count), read "
             "on time until a descriptor is ready, a signal comes, or a file has another form");

static PyObject *read_rounds(PyObject *self, PyObject *arguments)
{
    PyObject *given;
    struct file files[MOST_FILES];
    long long due, interval;
    int poll_fd;
    Py_ssize_t most, done, width = -1;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "iO!LLn", &poll_fd, &PyTuple_Type, &given, &due, &interval, &most))
        return NULL;
    if (PyTuple_Size(given) <= MOST_FILES && due >= 0 && due <= INT64_MAX / 2 && interval > 0 &&
        interval <= LONGEST_INTERVAL)
        width = take_files(given, files);
    if (width < 0)
        return PyErr_Occurred() ? NULL : (PyErr_SetString(PyExc_ValueError, "read_rounds: out of range"), NULL);
    Py_ssize_t room = ROUND_BYTES / (width * (Py_ssize_t)sizeof(int64_t));
    most = most < 0 ? 0 : most < room ? most : room;
    int64_t *rounds = malloc((size_t)(most * width) * sizeof *rounds + 1);
    if (!rounds)
        return PyErr_NoMemory();
    Py_ssize_t count = PyTuple_Size(given);
    Py_BEGIN_ALLOW_THREADS
    done = run_rounds(poll_fd, files, count, due, interval, rounds, width, most);
    Py_END_ALLOW_THREADS
    PyObject *found = PyBytes_FromStringAndSize((char *)rounds, done * width * (Py_ssize_t)sizeof *rounds);
    free(rounds);
    return found;
}

PyDoc_STRVAR(set_option_doc, "set_option(option, value): prctl(2) with a number");

static PyObject *set_option(PyObject *self, PyObject *arguments)
{
    int option;
    unsigned long value;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "ik", &option, &value))
        return NULL;
    return PyLong_FromLong(prctl(option, value, 0, 0, 0));
}

PyDoc_STRVAR(set_title_doc, "set_title(begin, end, title): replace the arguments of this process, and its name");

static PyObject *set_title(PyObject *self, PyObject *arguments)
{
    unsigned long long begin, end;
    const char *title;
    Py_ssize_t size;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "KKy#", &begin, &end, &title, &size))
        return NULL;
    if (begin && end > begin) {
        size_t room = (size_t)(end - begin), used = (size_t)size < room ? (size_t)size : room - 1;
        char *place = (char *)(uintptr_t)begin;
        memset(place + used, 0, room - used);
        memcpy(place, title, used);
    }
    return PyLong_FromLong(prctl(PR_SET_NAME, title, 0, 0, 0)); /* the kernel takes the first 15 bytes */
}

PyDoc_STRVAR(find_words_doc, "find_words(texts, words): numbers of the texts with any of the words, upper case or not; "
                             "a zero byte is after each text and word; words are in lower case; see words.c");
PyObject *joblens_find_words(PyObject *self, PyObject *arguments);

PyDoc_STRVAR(scan_settled_doc, "scan_settled(records, first, changed, due): see process_scan.c");
PyObject *joblens_scan_settled(PyObject *self, PyObject *arguments);

PyDoc_STRVAR(new_records_doc, "new_records(widths): a handle that takes records of processes; see capture_records.c");
PyObject *joblens_new_records(PyObject *self, PyObject *arguments);

PyDoc_STRVAR(take_records_doc, "take_records(handle, piece, is_last): places and bytes of damage so far");
PyObject *joblens_take_records(PyObject *self, PyObject *arguments);

PyDoc_STRVAR(merged_records_doc, "merged_records(handle): all columns, and their texts; once");
PyObject *joblens_merged_records(PyObject *self, PyObject *arguments);

PyDoc_STRVAR(parse_rows_doc, "parse_rows(data, at, until, kinds, most, words): where they end, and cells; see csv_rows.c");
PyObject *joblens_parse_rows(PyObject *self, PyObject *arguments);

PyDoc_STRVAR(unpack_sections_doc, "unpack_sections(message, at, known, describe, make, room, rows_room): entries, or None");
PyObject *joblens_unpack_sections(PyObject *self, PyObject *arguments);

PyDoc_STRVAR(decode_rows_doc, "decode_rows(entries, columns, ticks): times, values, malformed ones; see batch_rows.c");
PyObject *joblens_decode_rows(PyObject *self, PyObject *arguments);

static PyMethodDef methods[] = {
    {"read_values", read_values, METH_VARARGS, read_values_doc},
    {"read_rounds", read_rounds, METH_VARARGS, read_rounds_doc},
    {"match_values", match_values, METH_VARARGS, match_values_doc},
    {"scan_settled", joblens_scan_settled, METH_VARARGS, scan_settled_doc},
    {"set_option", set_option, METH_VARARGS, set_option_doc},
    {"set_title", set_title, METH_VARARGS, set_title_doc},
    {"new_records", joblens_new_records, METH_VARARGS, new_records_doc},
    {"take_records", joblens_take_records, METH_VARARGS, take_records_doc},
    {"merged_records", joblens_merged_records, METH_VARARGS, merged_records_doc},
    {"find_words", joblens_find_words, METH_VARARGS, find_words_doc},
    {"parse_rows", joblens_parse_rows, METH_VARARGS, parse_rows_doc},
    {"unpack_sections", joblens_unpack_sections, METH_VARARGS, unpack_sections_doc},
    {"decode_rows", joblens_decode_rows, METH_VARARGS, decode_rows_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_native", "Counter files, processes, records and prctl(2) in C; see native.c.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModule_Create(&module);
}

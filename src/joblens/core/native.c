/* What is worth C: reading counter files whose form is known, processes (process_scan.c), records of captured
 * processes (capture_records.c), and prctl(2) without loading ctypes.
 *
 * A form describes the text of a file token by token (joblens.core.counter_file makes it). A text that differs
 * from it in anything but the digits of its values is left to the parsers in Python, and so are values that do
 * not fit into 63 bits. So nothing here has to judge a text: it is either exactly as expected or not read.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x03090000 /* one library for all later versions of Python */
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define SMALL (1 << 14)
#define LARGEST (1 << 22) /* bytes: more is left to Python */
#define MOST_VALUES 512   /* that need no allocation */

/* Operations of a form; T and L are followed by a length of two bytes and the text. */
enum {
    TEXT = 'T',    /* a token that must be the same */
    REST = 'L',    /* the rest of the line, blanks included, that must be the same */
    VALUE = 'V',   /* a number */
    ADD = '+',     /* a number that is added to the value before it */
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
static const char *parse_number(const char *at, const char *end, int64_t *number)
{
    const char *begin = at;
    uint64_t found = 0;
    for (; at < end && *at >= '0' && *at <= '9'; at++) {
        if (at - begin >= 19)
            return NULL;
        found = found * 10 + (uint64_t)(*at - '0'); /* 19 digits fit into 64 bits */
    }
    if (at == begin || found > INT64_MAX || (at < end && *at != '\n' && !is_blank(*at)))
        return NULL;
    *number = (int64_t)found;
    return at;
}

/* Match a text with a form, and fill `values`. Return how many there are, or -1 if they do not match. */
static Py_ssize_t match(const char *at, const char *end, const char *form, const char *form_end, int64_t *values,
                        Py_ssize_t most)
{
    Py_ssize_t count = 0;
    while (form < form_end) {
        char operation = *form++;
        while (operation != REST && at < end && is_blank(*at))
            at++;
        if (operation == NEWLINE) {
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
    PyObject *found = size < 0 ? Py_NewRef(Py_None) : match_list(text, size, form, form_size, most);
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

PyDoc_STRVAR(scan_processes_doc, "scan_processes(records, first, changed): see process_scan.c");
PyObject *joblens_scan_processes(PyObject *self, PyObject *arguments);

PyDoc_STRVAR(new_records_doc, "new_records(widths): a handle that takes records of processes; see capture_records.c");
PyObject *joblens_new_records(PyObject *self, PyObject *arguments);

PyDoc_STRVAR(take_records_doc, "take_records(handle, piece, is_last): places and bytes of damage so far");
PyObject *joblens_take_records(PyObject *self, PyObject *arguments);

PyDoc_STRVAR(merged_records_doc, "merged_records(handle): all columns, and their texts; once");
PyObject *joblens_merged_records(PyObject *self, PyObject *arguments);

static PyMethodDef methods[] = {
    {"read_values", read_values, METH_VARARGS, read_values_doc},
    {"match_values", match_values, METH_VARARGS, match_values_doc},
    {"scan_processes", joblens_scan_processes, METH_VARARGS, scan_processes_doc},
    {"set_option", set_option, METH_VARARGS, set_option_doc},
    {"set_title", set_title, METH_VARARGS, set_title_doc},
    {"new_records", joblens_new_records, METH_VARARGS, new_records_doc},
    {"take_records", joblens_take_records, METH_VARARGS, take_records_doc},
    {"merged_records", joblens_merged_records, METH_VARARGS, merged_records_doc},
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

/* Numbers of batches as columns, for joblens.hub.decode, which has the same in NumPy and says what they mean.
 *
 * An entry has the lengths of its parts, then two runs of words: positions of values that change, times, first row;
 * and the differences of each value that changes. Of each run the bytes of equal weight are stored together. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x03090000 /* one library for all later versions of Python */
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define WORD 8
#define SIZES 12 /* bytes of the three lengths */

typedef struct {
    uint64_t ticks, size, moving;
    const unsigned char *words;
} Entry;

typedef struct {
    uint64_t columns, ticks, rows; /* of all entries together */
    uint64_t *times, *values, *words;
} Target;

static uint64_t read_length(const unsigned char *at)
{
    return at[0] | (uint64_t)at[1] << 8 | (uint64_t)at[2] << 16 | (uint64_t)at[3] << 24;
}

/* Return whether the lengths are those of the whole entry. */
static int read_entry(PyObject *data, Entry *entry)
{
    char *begin;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(data, &begin, &length) < 0)
        return 0;
    if (length < SIZES)
        return 0;
    const unsigned char *at = (const unsigned char *)begin;
    entry->ticks = read_length(at);
    entry->size = read_length(at + 4);
    entry->moving = read_length(at + 8);
    entry->words = at + SIZES;
    if (!entry->ticks || entry->moving > entry->size || entry->ticks > (uint64_t)length)
        return 0;
    uint64_t words = entry->moving * entry->ticks + entry->ticks + entry->size;
    return ((uint64_t)length - SIZES) / WORD == words && ((uint64_t)length - SIZES) % WORD == 0;
}

static void unshuffle(const unsigned char *planes, uint64_t count, uint64_t *words)
{
    for (uint64_t at = 0; at < count; at++)
        words[at] = planes[at];
    for (int byte = 1; byte < WORD && count; byte++) {
        const unsigned char *plane = planes + byte * count;
        if (!plane[0] && !memcmp(plane, plane + 1, count - 1)) /* as of most high bytes */
            continue;
        for (uint64_t at = 0; at < count; at++)
            words[at] |= (uint64_t)plane[at] << (8 * byte);
    }
}

/* Return whether all positions are within the row. `before`: rows of the entries before this one. */
static int decode_entry(const Entry *entry, uint64_t number, uint64_t before, const Target *target)
{
    uint64_t ticks = entry->ticks, steps = ticks - 1;
    uint64_t count = entry->moving + ticks + entry->size;
    uint64_t *places = target->words, *times = places + entry->moving, *first = times + ticks;
    unshuffle(entry->words, count, places);
    uint64_t time = 0;
    for (uint64_t tick = 0; tick < ticks; tick++)
        target->times[number * ticks + tick] = time += times[tick];
    for (uint64_t column = 0; column < target->columns; column++) {
        uint64_t *to = target->values + column * target->rows + before;
        for (uint64_t at = column; at < entry->size; at += target->columns)
            for (uint64_t tick = 0; tick < ticks; tick++)
                *to++ = first[at];
    }
    if (!steps || !entry->moving)
        return 1;
    uint64_t *step = places + count;
    unshuffle(entry->words + count * WORD, entry->moving * steps, step);
    int sound = 1;
    for (uint64_t at = 0; at < entry->moving; at++, step += steps) {
        uint64_t place = places[at];
        if (place >= entry->size) {
            sound = 0;
            continue;
        }
        uint64_t key = place / target->columns, column = place % target->columns, sum = first[place];
        uint64_t *to = target->values + column * target->rows + before + key * ticks + 1;
        for (uint64_t tick = 0; tick < steps; tick++)
            to[tick] = sum += step[tick];
    }
    return sound;
}

/* Decode all entries. Return the positions of malformed ones as a list. */
static PyObject *decode_entries(const Entry *entries, Py_ssize_t count, const Target *target)
{
    PyObject *wrong = PyList_New(0);
    uint64_t row = 0;
    for (Py_ssize_t at = 0; wrong && at < count; at++) {
        if (!decode_entry(&entries[at], (uint64_t)at, row, target)) {
            PyObject *number = PyLong_FromSsize_t(at);
            if (!number || PyList_Append(wrong, number) < 0)
                Py_CLEAR(wrong);
            Py_XDECREF(number);
        }
        row += entries[at].size / target->columns * target->ticks;
    }
    return wrong;
}

/* Find the entries, and the memory that they need. Return 0 if they are not alike or not whole. */
static int find_entries(PyObject *list, Entry *entries, Target *target, uint64_t *words)
{
    target->rows = *words = 0;
    for (Py_ssize_t at = 0; at < PyList_Size(list); at++) {
        Entry *entry = &entries[at];
        if (!read_entry(PyList_GetItem(list, at), entry))
            return 0;
        if (entry->ticks != target->ticks || entry->size % target->columns)
            return 0;
        uint64_t own = entry->moving * entry->ticks + entry->ticks + entry->size;
        *words = own > *words ? own : *words;
        target->rows += entry->size / target->columns * entry->ticks;
    }
    return target->rows <= PY_SSIZE_T_MAX / WORD / target->columns;
}

PyObject *joblens_decode_rows(PyObject *self, PyObject *args)
{
    PyObject *list, *times = NULL, *values = NULL, *found = NULL;
    unsigned long columns, ticks;
    (void)self;
    if (!PyArg_ParseTuple(args, "O!kk", &PyList_Type, &list, &columns, &ticks))
        return NULL;
    if (!columns || !ticks)
        return PyErr_Format(PyExc_ValueError, "no columns or no ticks");
    Target target = {columns, ticks, 0, NULL, NULL, NULL};
    Py_ssize_t count = PyList_Size(list);
    Entry *entries = calloc((size_t)count + 1, sizeof *entries);
    uint64_t words;
    if (!entries)
        return PyErr_NoMemory();
    if (!find_entries(list, entries, &target, &words)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "the numbers do not match their description");
        goto end;
    }
    times = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)ticks * WORD);
    values = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(target.rows * columns * WORD));
    target.words = malloc((words + 1) * WORD);
    if (times && values && target.words) {
        target.times = (uint64_t *)(void *)PyBytes_AsString(times);
        target.values = (uint64_t *)(void *)PyBytes_AsString(values);
        PyObject *wrong = decode_entries(entries, count, &target);
        found = wrong ? PyTuple_Pack(3, times, values, wrong) : NULL;
        Py_XDECREF(wrong);
    } else if (!target.words) {
        PyErr_NoMemory();
    }
end:
    free(target.words);
    free(entries);
    Py_XDECREF(times);
    Py_XDECREF(values);
    return found;
}

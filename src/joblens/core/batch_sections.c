/* Sections of a batch, inflated, for joblens.hub.decode, which has the same in Python.
 *
 * What is not exactly as it should be is left to Python, which says what is wrong with it. zlib is that of the system,
 * loaded when it is needed: its headers are seldom installed, and without it Python inflates the sections.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x03090000 /* one library for all later versions of Python */
#include <Python.h>

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

#define LENGTH 4  /* bytes before a section */
#define SIZES 12  /* bytes before the numbers: ticks, values of a tick, values that change */
#define WORD 8
#define LARGEST (1 << 20) /* bytes of an inflated section; larger ones are left to Python */
#define Z_FINISH 4
#define Z_STREAM_END 1

typedef struct { /* z_stream of zlib.h, whose layout belongs to the library's ABI */
    const unsigned char *next_in;
    unsigned avail_in;
    unsigned long total_in;
    unsigned char *next_out;
    unsigned avail_out;
    unsigned long total_out;
    const char *msg;
    void *state, *zalloc, *zfree, *opaque;
    int data_type;
    unsigned long adler, reserved;
} Stream;

static struct {
    int tried;
    int (*inflate)(Stream *, int);
    int (*reset)(Stream *);
    Stream stream;
    unsigned char *buffer;
} zlib;

static int load_zlib(void)
{
    if (zlib.tried)
        return zlib.buffer != NULL;
    zlib.tried = 1;
    void *library = dlopen("libz.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return 0;
    int (*begin)(Stream *, const char *, int);
    *(void **)&begin = dlsym(library, "inflateInit_");
    *(void **)&zlib.inflate = dlsym(library, "inflate");
    *(void **)&zlib.reset = dlsym(library, "inflateReset");
    if (begin && zlib.inflate && zlib.reset && begin(&zlib.stream, "1", (int)sizeof zlib.stream) == 0)
        zlib.buffer = malloc(LARGEST);
    return zlib.buffer != NULL;
}

/* Return the inflated bytes, NULL without an exception if the section is malformed or too large. They are copied before
 * any code of Python can run: another thread may use the same stream then. */
static PyObject *inflate_section(const unsigned char *data, Py_ssize_t length)
{
    Stream *stream = &zlib.stream;
    if (zlib.reset(stream))
        return NULL;
    stream->next_in = data;
    stream->avail_in = (unsigned)length;
    stream->next_out = zlib.buffer;
    stream->avail_out = LARGEST;
    if (zlib.inflate(stream, Z_FINISH) != Z_STREAM_END || stream->avail_in)
        return NULL;
    return PyBytes_FromStringAndSize((const char *)zlib.buffer, LARGEST - (Py_ssize_t)stream->avail_out);
}

static uint64_t read_length(const unsigned char *at)
{
    return at[0] | (uint64_t)at[1] << 8 | (uint64_t)at[2] << 16 | (uint64_t)at[3] << 24;
}

typedef struct {
    PyObject *known, *describe, *make;
    long long room, rows_room; /* bytes that the rest may have, inflated and as decoded rows */
} Reader;

/* Return the description of an entry: the known one, or a new one. */
static PyObject *find_description(Reader *reader, const unsigned char *data, Py_ssize_t length)
{
    PyObject *described = PyBytes_FromStringAndSize((const char *)data, length);
    if (!described)
        return NULL;
    PyObject *found = PyObject_CallFunctionObjArgs(reader->known, described, NULL);
    if (found == Py_None) {
        Py_DECREF(found);
        found = PyObject_CallFunction(reader->describe, "OL", described, reader->room);
    }
    Py_DECREF(described);
    return found;
}

/* Return a number of a description, -1 with an exception. */
static long long get_number(PyObject *description, const char *name)
{
    PyObject *number = PyObject_GetAttrString(description, name);
    long long found = number ? PyLong_AsLongLong(number) : -1;
    Py_XDECREF(number);
    return found;
}

/* Return whether the inflated numbers are those of the description, -1 with an exception. */
static int check_numbers(Reader *reader, PyObject *description, const unsigned char *plain, Py_ssize_t length)
{
    if (length < SIZES)
        return 0;
    long long width = get_number(description, "width"), row_bytes = get_number(description, "row_bytes");
    if (PyErr_Occurred())
        return -1;
    uint64_t ticks = read_length(plain), size = read_length(plain + 4), moving = read_length(plain + 8);
    if (size != (uint64_t)width || !ticks || ticks > LARGEST || moving > size)
        return 0;
    uint64_t words = moving * ticks + ticks + size;
    if (words > LARGEST / WORD || (uint64_t)length != SIZES + WORD * words)
        return 0;
    if (row_bytes > reader->rows_room / (long long)ticks)
        return 0;
    reader->rows_room -= row_bytes * (long long)ticks;
    reader->room -= length;
    return reader->room > 0;
}

/* Append an entry to the list. Return 0 if Python has to read the batch, -1 with an exception. */
static int add_entry(Reader *reader, PyObject *list, PyObject *description, PyObject *inflated)
{
    const unsigned char *plain = (const unsigned char *)PyBytes_AsString(inflated);
    int sound = check_numbers(reader, description, plain, PyBytes_Size(inflated));
    if (sound == 1) {
        unsigned long ticks = (unsigned long)read_length(plain), moving = (unsigned long)read_length(plain + 8);
        PyObject *parts = Py_BuildValue("(OkkO)", description, ticks, moving, inflated);
        PyObject *entry = parts ? PyObject_CallFunctionObjArgs(reader->make, parts, NULL) : NULL;
        sound = entry && PyList_Append(list, entry) == 0 ? 1 : -1;
        Py_XDECREF(parts);
        Py_XDECREF(entry);
    }
    return sound;
}

typedef struct {
    const unsigned char *data;
    Py_ssize_t length;
} Section;

/* As `add_entry`, of the two sections of an entry. */
static int read_sections(Reader *reader, PyObject *list, Section described, Section packed)
{
    PyObject *description = find_description(reader, described.data, described.length);
    PyObject *inflated = description ? inflate_section(packed.data, packed.length) : NULL;
    int sound = PyErr_Occurred() ? -1 : 0;
    if (inflated)
        sound = add_entry(reader, list, description, inflated);
    Py_XDECREF(description);
    Py_XDECREF(inflated);
    return sound;
}

PyObject *joblens_unpack_sections(PyObject *self, PyObject *args)
{
    Reader reader;
    Section section = {NULL, 0}, before;
    const unsigned char *data;
    Py_ssize_t end, at;
    (void)self;
    if (!PyArg_ParseTuple(args, "y#nOOOLL", &data, &end, &at, &reader.known, &reader.describe, &reader.make,
                          &reader.room, &reader.rows_room))
        return NULL;
    PyObject *found = load_zlib() ? PyList_New(0) : NULL;
    int sections = 0, sound = found != NULL;
    while (sound == 1 && at < end) { /* the header is the first, then two make an entry */
        before = section;
        section.length = end - at < LENGTH ? end : (Py_ssize_t)read_length(data + at);
        section.data = data + at + LENGTH;
        at += LENGTH;
        if (section.length > end - at)
            sound = 0;
        else if (sections && sections % 2 == 0)
            sound = read_sections(&reader, found, before, section);
        at += section.length;
        sections++;
    }
    if (sound == 1 && sections % 2)
        return found;
    Py_XDECREF(found);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}
